"""A request's task and tokens, or the error that says what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidal.arlo.model import TokenRow
from tidal.arlo.reader import read_rows
from tidal.errors import InvalidArgument
from tidal.requests import PendingRequest
from tidal.text import TextTokenizer

_FEW = 5


def read_task(request: PendingRequest, known: Callable[[], Collection[str]]) -> str:
    """The name of the task that all rows of a request belong to.

    Args:
        request: with the option `task`.
        known: gives the names of all tasks, for the error.

    Raises:
        InvalidArgument: it names none.
    """
    name = request.options.task
    if name is None:
        names = sorted(known())
        some = ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
        hint = f"accepted: {some}" if some else "the model has no tasks"
        raise InvalidArgument(f"the request names no task in its option 'task'; {hint}")
    return name


def read_tokens(request: PendingRequest, tokenizer: TextTokenizer) -> list[TokenRow]:
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
