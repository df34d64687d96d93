"""What every engine gives for a task that it holds."""

from __future__ import annotations

from tidal.errors import InvalidArgument
from tidal.pets.terms import Head

REMOVED = "the task was removed from the engine; accepted are tasks that `add` returned"


class LoadedTask:
    """A task that an engine can run; made by the engine's `add`, and of use to that engine alone.

    Attributes:
        head: its classifier.
        bytes: memory that it takes, its classifier included.
    """

    __slots__ = ("__weakref__", "bytes", "head")

    def __init__(self, head: Head, packed: int) -> None:
        self.head = head
        self.bytes = packed + head.weight.nbytes + head.bias.nbytes


def not_of_this_engine(task: LoadedTask) -> InvalidArgument:
    """The error for a task that another kind of engine made."""
    return InvalidArgument(f"a {type(task).__name__} is of another engine; accepted are tasks that `add` returned")
