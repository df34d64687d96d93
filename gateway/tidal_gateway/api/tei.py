"""The API of text-embeddings-inference: `POST /embed`, `/rerank`, `/predict`."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, StrictBool, StrictInt, StrictStr

from tidal_gateway.api.answers import HttpAnswer, json_answer
from tidal_gateway.api.classification import classify_texts, ranked_labels
from tidal_gateway.api.embeddings import Inputs, embed
from tidal_gateway.api.options import Body, passed_on, with_synonym
from tidal_gateway.api.ranking import descending
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.api.reranking import score
from tidal_gateway.errors import invalid
from tidal_gateway.upstream.models import Use

# Whether long texts are cut is a parameter of Tidal's models, and so is normalisation.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "truncate": (False,),
    "truncation_direction": ("Right", "right"),
    "normalize": (True,),
}
Pair = Annotated[list[StrictStr], Field(min_length=1, max_length=2)]


class EmbedBody(Body):
    """Body of `POST /embed`."""

    inputs: Inputs = Field(description="a text, texts, or token ids")
    model: StrictStr | None = Field(None, description="model; may be left out where one fits")
    prompt_name: StrictStr | None = Field(None, description="name of the model's prompt")
    dimensions: StrictInt | None = Field(None, ge=1, description="length of the embeddings")


class TeiRerankBody(Body):
    """Body of `POST /rerank`."""

    query: StrictStr
    texts: list[StrictStr]
    model: StrictStr | None = Field(None, description="model; may be left out where one fits")
    raw_scores: StrictBool = Field(False, description="return logits instead of scores")
    return_text: StrictBool = False


class PredictBody(Body):
    """Body of `POST /predict`."""

    inputs: StrictStr | Pair | list[Pair] = Field(description="a text, a pair of texts, or a list of pairs or texts")
    model: StrictStr | None = Field(None, description="model; may be left out where one fits")
    raw_scores: StrictBool = Field(False, description="return logits instead of probabilities")


async def tei_embed(request: ApiRequest) -> HttpAnswer:
    """Embed texts."""
    body = request.parse(EmbedBody)
    fields = with_synonym({**body.extra, "dimensions": body.dimensions}, "prompt", "prompt_name", body.prompt_name)
    options = passed_on(fields, request.headers, EmbedBody.model_fields, _NEUTRAL)
    default = request.gateway.settings.embedding_model
    target = await request.default_target(body.model, default, Use.EMBEDDING, options.get("task"))
    return json_answer(list(await embed(request, target, body.inputs, "inputs", options)))


async def tei_rerank(request: ApiRequest) -> HttpAnswer:
    """Score texts by how well they answer a query."""
    body = request.parse(TeiRerankBody)
    options = passed_on(body.extra, request.headers, TeiRerankBody.model_fields, _NEUTRAL)
    default = request.gateway.settings.rerank_model
    target = await request.default_target(body.model, default, Use.RERANKING, options.get("task"))
    found = await score(request, target, body.query, body.texts, "texts", options)
    values = found["logits" if body.raw_scores else "score"].reshape(len(body.texts), -1)
    if values.shape[1] != 1:
        raise invalid(f"model '{target.name}' has {values.shape[1]} logits for each text; leave raw_scores out")
    scores = values[:, 0]
    return json_answer(
        [
            {"index": int(index), "score": float(scores[index])}
            | ({"text": body.texts[index]} if body.return_text else {})
            for index in descending(scores)
        ]
    )


async def tei_predict(request: ApiRequest) -> HttpAnswer:
    """Classify texts or pairs of texts; each answer has all labels whose names are known, else the most likely one."""
    body = request.parse(PredictBody)
    options = passed_on(body.extra, request.headers, PredictBody.model_fields, _NEUTRAL)
    default = request.gateway.settings.classification_model
    target = await request.default_target(body.model, default, Use.TEXT_CLASSIFICATION, options.get("task"))
    request.check_count("inputs", len(body.inputs) if isinstance(body.inputs, list) else 1)
    single = isinstance(body.inputs, str) or isinstance(body.inputs[0], str)
    rows: Any = [body.inputs] if single else body.inputs
    pairs = [[row] if isinstance(row, str) else row for row in rows]
    if len({len(row) for row in pairs}) > 1:
        raise invalid("field 'inputs' mixes texts and pairs of texts; send them in two requests", "inputs")
    seconds = [row[1] for row in pairs] if len(pairs[0]) == 2 else None
    scores = "logits" if body.raw_scores else "probabilities"
    texts = [row[0] for row in pairs]
    found = await classify_texts(request, target, texts, seconds, "inputs", options, ("label", scores))
    values = np.asarray(found[scores])
    ranked = await ranked_labels(request, target, found, values)
    if ranked is None:
        ranked = [
            [(bytes(label).decode(), float(row.max()))]
            for row, label in zip(values, found["label"].reshape(-1), strict=True)
        ]
    predictions = [[{"score": value, "label": label} for label, value in row] for row in ranked]
    return json_answer(predictions[0] if single else predictions)
