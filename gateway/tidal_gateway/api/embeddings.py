"""OpenAI's embeddings: `POST /v1/embeddings`."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, StrictInt, StrictStr

from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_gateway.api.answers import HttpAnswer, json_answer
from tidal_gateway.api.inputs import text_column, token_columns
from tidal_gateway.api.options import Body, passed_on
from tidal_gateway.api.request import ApiRequest, ModelTarget
from tidal_gateway.api.rows import infer_rows
from tidal_gateway.upstream.models import Use

#: Outputs that an answer is written from.
OUTPUTS: Final = ("embedding",)
Tokens = list[StrictInt]
#: One text, texts, the token ids of one text, or those of several.
Inputs = StrictStr | Annotated[list[StrictStr], Field(min_length=1)] | Tokens | list[Tokens]


class EmbeddingsBody(Body):
    """Body of `POST /v1/embeddings`."""

    model: StrictStr = Field(description="model, or model/task")
    input: Inputs = Field(description="a text, texts, token ids of one text, or those of several")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: StrictInt | None = Field(None, ge=1, description="length of the embeddings")
    user: StrictStr | None = Field(None, description="accepted for compatibility; has no effect")


async def embeddings(request: ApiRequest) -> HttpAnswer:
    """Embed texts."""
    body = request.parse(EmbeddingsBody)
    fields = {**body.extra, "dimensions": body.dimensions}
    options = passed_on(fields, request.headers, EmbeddingsBody.model_fields)
    target = await request.target(body.model, Use.EMBEDDING, options.get("task"))
    vectors = await embed(request, target, body.input, "input", options)
    rows: list[Any] = list(vectors)
    if body.encoding_format == "base64":
        little = vectors.astype("<f4", copy=False)
        rows = [base64.b64encode(row.tobytes()).decode() for row in little]
    used = request.exchange.input_tokens
    return json_answer(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
            "model": body.model,
            "usage": {"prompt_tokens": used, "total_tokens": used},
        }
    )


async def embed(
    request: ApiRequest, target: ModelTarget, inputs: Inputs, field: str, options: dict[str, Parameter]
) -> Array:
    """Return the embeddings of a request's inputs, [inputs, dimensions] float32.

    Args:
        request: Request of the client.
        target: Model.
        inputs: Texts or token ids.
        field: Name of the field that has them.
        options: Parameters of the request.
    """
    columns = input_columns(request, target, inputs, field)
    found = await infer_rows(request, target, columns, OUTPUTS, options)
    return np.ascontiguousarray(found["embedding"], np.float32)


def input_columns(request: ApiRequest, target: ModelTarget, inputs: Inputs, field: str) -> dict[str, Array]:
    """Return a request's texts or token ids as arrays by input name."""
    if isinstance(inputs, str):
        return {"text_input": text_column(field, [inputs])}
    request.check_count(field, len(inputs))
    first = inputs[0]
    if isinstance(first, str):
        return {"text_input": text_column(field, inputs)}  # type: ignore[arg-type]
    rows: Any = [inputs] if isinstance(first, int) else inputs
    return token_columns(field, rows, target.facts)
