"""Input and output of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class PetsQuery:
    """A waiting query.

    Attributes:
        task: Name of the task.
        kind: Name of the task's kind.
        length: Length in tokens, special tokens included.
        arrival: Time of arrival in seconds, on the caller's clock.
        deadline: Time by which the answer is due in seconds on the same clock, or None.
        utility: Utility of an answer in time.
    """

    task: str
    kind: str
    length: int  # tokens, special tokens included
    arrival: float
    deadline: float | None = None
    utility: float = 1.0  # of an answer in time


@dataclass(eq=False, slots=True)
class PetsBatch:
    """Queries that run together; never empty.

    Attributes:
        queries: Queries of any tasks; all of one task if `copy` is set.
        copy: Name of the task whose merged copy runs the batch; None for the shared base.
        seconds: Execution time on the lane by the profile.
        lane: Lane that runs it: 0 has all threads, the others one each.
    """

    queries: Sequence[PetsQuery]
    copy: str | None
    seconds: float
    lane: int = 0
