"""Requests whose rows are independent: texts to embed, pairs to score, texts and images to classify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_gateway.api.inputs import cut, joined, row_slices
from tidal_gateway.api.request import ApiRequest, ModelTarget, all_of

#: Output of models that count the tokens of each row.
TOKENS: Final = "input_tokens"


async def infer_rows(
    request: ApiRequest,
    target: ModelTarget,
    columns: dict[str, Array],
    outputs: Sequence[str],
    options: Mapping[str, Parameter],
) -> dict[str, Array]:
    """Send rows in as many requests as the model's batch size requires, all at once, and return the joined outputs.

    Outputs that the model does not have are left out. The tokens are counted in the request's exchange.

    Args:
        request: Request of the client.
        target: Model.
        columns: Arrays [rows, ...] by input name.
        outputs: Names of the outputs.
        options: Parameters of each request.
    """
    wanted = [name for name in (*outputs, TOKENS) if name in target.facts.outputs]
    rows = len(next(iter(columns.values())))
    slices = list(row_slices(target.facts, rows))
    if len(slices) == 1:
        found = await request.infer(target, columns, wanted, options)
    else:
        parts = await all_of([request.infer(target, cut(columns, each), wanted, options) for each in slices])
        found = {name: joined(parts, name) for name in wanted}
    if TOKENS in found:
        request.exchange.input_tokens += sum(found[TOKENS].ravel().tolist())
    elif "input_ids" in columns:
        mask = columns.get("attention_mask")
        request.exchange.input_tokens += int(columns["input_ids"].size if mask is None else mask.sum())
    return found
