"""The token rows of requests, checked for what this backend and the request's task accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidal.arlo.model import TokenRow
from tidal.arlo.reader import read_requests
from tidal.errors import InvalidArgument, TidalError
from tidal.pets.heads import head_task
from tidal.pets.jobs import NamedLease, check_wanted
from tidal.requests import Array
from tidal.serving.endings import failure
from tidal.text import TextTokenizer


def read_token_rows(
    requests: Sequence[NamedLease], tokenizer: TextTokenizer, with_offsets: TextTokenizer, declared: frozenset[str]
) -> list[list[TokenRow] | TidalError]:
    """Read the token rows of requests from `text_input` (and `text_pair`) or `input_ids`, as an `arlo` model does.

    Args:
        requests: The requests, with their tasks.
        tokenizer: Tokenizer of the model.
        with_offsets: The same tokenizer, for tasks whose answers refer to characters.
        declared: Names of the outputs that config.pbtxt declares.

    Returns:
        For each request its rows, or the error of an input, option or output that its task does not accept, which names
        it, the value received and what is accepted.
    """
    results: list[list[TokenRow] | TidalError] = [[] for _ in requests]
    groups: dict[bool, dict[int, Mapping[str, Array]]] = {False: {}, True: {}}
    for index, each in enumerate(requests):
        try:
            check_wanted(each.head, each.task, each.request.wanted, declared)
            inputs = each.head.answering.read(each.request)
            groups[head_task(each.head.task).offsets][index] = inputs
        except Exception as error:  # one request must not fail the others
            results[index] = failure(error, "the request could not be read")
    for offsets, inputs_of in groups.items():
        if inputs_of:
            read = read_requests(list(inputs_of.values()), with_offsets if offsets else tokenizer)
            for (index, inputs), rows in zip(inputs_of.items(), read, strict=True):
                results[index] = _without_gaps(rows) if "attention_mask" in inputs else rows
    return results


def _without_gaps(rows: list[TokenRow] | TidalError) -> list[TokenRow] | TidalError:
    """Return the rows, or the error for the first one with a token that is not attended to; texts have none."""
    for number, row in enumerate([] if isinstance(rows, TidalError) else rows):
        if not row.mask.all():
            return InvalidArgument(
                f"attention_mask row {number} has a 0 before its last 1; this model accepts rows without gaps only"
            )
    return rows
