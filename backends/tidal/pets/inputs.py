"""The token rows of requests, checked for what this backend and the request's task accept, and cut into windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidal.encoder_tasks.cutting import pieces
from tidal.encoder_tasks.reader import read_requests
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows
from tidal.errors import InvalidArgument, TidalError
from tidal.pets.jobs import NamedLease, check_wanted
from tidal.pets.texts import TaskTexts
from tidal.requests import Array
from tidal.serving.endings import failure
from tidal.text import TextTokenizer


class TokenisedRequest(NamedTuple):
    """The rows of a request.

    Attributes:
        tokens: Tokens of each row.
        windows: Windows over each row, None for a row that runs whole; None if all do.
        queries: Tokens of the rows and windows to run, in order.
    """

    tokens: Sequence[TokenRow]
    windows: Sequence[Windows | None] | None
    queries: Sequence[TokenRow]


def read_token_rows(
    requests: Sequence[NamedLease], texts: TaskTexts, declared: frozenset[str]
) -> list[TokenisedRequest | TidalError]:
    """Read the token rows of requests from `text_input` (and `text_pair`) or `input_ids`, as an `arlo` model does.

    Args:
        requests: The requests, with their tasks.
        texts: Reader of each task's texts.
        declared: Names of the outputs that config.pbtxt declares.

    Returns:
        For each request its rows, or the error of an input, option or output that its task does not accept, which names
        it, the value received and what is accepted.
    """
    results: dict[int, TokenisedRequest | TidalError] = {}
    groups: dict[TextTokenizer, dict[int, Mapping[str, Array]]] = {}
    for index, each in enumerate(requests):
        try:
            check_wanted(each.head, each.task, each.request.wanted, declared)
            inputs = each.answering.read(each.request)
            groups.setdefault(texts.reader(each.head.task).tokenizer, {})[index] = inputs
        except Exception as error:  # one request must not fail the others
            results[index] = failure(error, "the request could not be read")
    for tokenizer, inputs_of in groups.items():
        read = read_requests(list(inputs_of.values()), tokenizer)
        for (index, inputs), rows in zip(inputs_of.items(), read, strict=True):
            results[index] = _checked(requests[index], inputs, rows, texts)
    return [results[index] for index in range(len(requests))]


def _checked(
    request: NamedLease, inputs: Mapping[str, Array], rows: list[TokenRow] | TidalError, texts: TaskTexts
) -> TokenisedRequest | TidalError:
    """Return the rows of a request without gaps, cut into windows where they are too long; or their error."""
    if isinstance(rows, TidalError):
        return rows
    try:
        if "attention_mask" in inputs:  # texts have no gaps
            _refuse_gaps(rows)
        cutter = texts.reader(request.head.task).cutter
        if cutter is None:
            return TokenisedRequest(rows, None, rows)
        windows = cutter.cut(rows)
        return TokenisedRequest(rows, windows, pieces(rows, windows))
    except TidalError as error:
        return error


def _refuse_gaps(rows: Sequence[TokenRow]) -> None:
    for number, row in enumerate(rows):
        if not row.mask.all():
            raise InvalidArgument(
                f"attention_mask row {number} has a 0 before its last 1; this model accepts rows without gaps only"
            )
