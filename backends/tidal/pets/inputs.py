"""The token rows of a request, checked for what this backend accepts."""

from __future__ import annotations

from tidal.arlo.model import TokenRow
from tidal.arlo.reader import read_rows
from tidal.errors import InvalidArgument
from tidal.requests import PendingRequest
from tidal.text import TextTokenizer


def read_token_rows(request: PendingRequest, tokenizer: TextTokenizer) -> list[TokenRow]:
    """Read the token rows of a request from `text_input` (and `text_pair`) or `input_ids`, as an `arlo` model does.

    Args:
        request: The request.
        tokenizer: Tokenizer of the model.

    Raises:
        InvalidArgument: An input is not accepted; the message names it, the value received and what is accepted.
    """
    rows = read_rows(request.inputs, tokenizer)
    for number, row in enumerate(rows):
        if not row.mask.all():
            raise InvalidArgument(
                f"attention_mask row {number} has a 0 before its last 1; this model accepts rows without gaps only"
            )
    return rows
