"""The span that calls to other models continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from tidal.access_log.record import RequestRecord
from tidal.options import TraceParent

_current: ContextVar[TraceParent | None] = ContextVar("span", default=None)
_UNTRACED = nullcontext()


def spans_within(record: RequestRecord | None) -> AbstractContextManager[None]:
    """Let the spans of calls to other models, made by this thread within the block, continue those of a request.

    Args:
        record: Record of the request; None if it has none.
    """
    return _UNTRACED if record is None or record.span is None else _within(record.span)


def current_span() -> TraceParent | None:
    """Return the span that a call to another model continues; None outside of `spans_within`."""
    return _current.get()


@contextmanager
def _within(span: TraceParent) -> Iterator[None]:
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)
