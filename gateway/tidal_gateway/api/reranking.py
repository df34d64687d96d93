"""Reranking in the shape of Cohere and of Jina: `POST /v1/rerank`, `/v2/rerank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_gateway.api.answers import HttpAnswer, json_answer
from tidal_gateway.api.inputs import encode, text_column
from tidal_gateway.api.options import Body, passed_on
from tidal_gateway.api.ranking import descending
from tidal_gateway.api.request import ApiRequest, ModelTarget
from tidal_gateway.api.rows import infer_rows
from tidal_gateway.errors import invalid
from tidal_gateway.upstream.models import Use

# Fields of the two APIs that request nothing with these values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "max_tokens_per_doc": (),
    "max_chunks_per_doc": (),
    "rank_fields": ([], ["text"]),
    "truncation": (False,),
    "priority": (0,),
    "return_embeddings": (False,),
}


class Document(BaseModel):
    """A document as an object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: StrictStr


class RerankBody(Body):
    """Body of `POST /v1/rerank`."""

    model: StrictStr = Field(description="model, or model/task")
    query: StrictStr
    documents: list[StrictStr | Document] = Field(description="texts, or objects with a text")
    top_n: StrictInt | None = Field(None, ge=1, description="number of results")
    return_documents: StrictBool = Field(False, description="whether the results have the documents")


async def rerank(request: ApiRequest) -> HttpAnswer:
    """Score documents by how well they answer a query."""
    body = request.parse(RerankBody)
    options = passed_on(body.extra, request.headers, RerankBody.model_fields, _NEUTRAL)
    target = await request.target(body.model, Use.RERANKING, options.get("task"))
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    scores = (await score(request, target, body.query, texts, "documents", options))["score"].reshape(-1)
    ranked = descending(scores)[: body.top_n]
    results = [
        {"index": int(index), "relevance_score": float(scores[index])}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in ranked
    ]
    used = request.exchange.input_tokens
    return json_answer(
        {
            "id": request.exchange.request_id,
            "object": "list",
            "model": body.model,
            "results": results,
            "usage": {"total_tokens": used, "prompt_tokens": used},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }
    )


async def score(
    request: ApiRequest,
    target: ModelTarget,
    query: str,
    texts: Sequence[str],
    field: str,
    options: dict[str, Parameter],
) -> dict[str, Array]:
    """Return the outputs `score` [texts, 1] and `logits` of a query with each text."""
    request.check_count(field, len(texts))
    if not query:
        raise invalid("field 'query': expected a text of at least 1 character, got ''", "query")
    first = np.empty((len(texts), 1), np.object_)
    first[:, 0] = encode("query", query)
    columns = {"text_input": first, "text_pair": text_column(field, texts)}
    return await infer_rows(request, target, columns, ["score", "logits"], options)
