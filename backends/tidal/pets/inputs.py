"""A request's tokens, or the error that says what is wrong with them."""

from __future__ import annotations

from tidal.arlo.model import TokenRow
from tidal.arlo.reader import read_rows
from tidal.errors import InvalidArgument
from tidal.requests import PendingRequest
from tidal.text import TextTokenizer


def read_token_rows(request: PendingRequest, tokenizer: TextTokenizer) -> list[TokenRow]:
    """Token rows of a request with `text_input` (and `text_pair`) or `input_ids`, as an `arlo` model takes them.

    Raises:
        InvalidArgument: names the input, what came and what is accepted.
    """
    rows = read_rows(request.inputs, tokenizer)
    for number, row in enumerate(rows):
        if not row.mask.all():
            raise InvalidArgument(
                f"attention_mask row {number} has a 0 before its last 1; accepted are rows without gaps in this model"
            )
    return rows
