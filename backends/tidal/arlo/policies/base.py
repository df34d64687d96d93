"""What every placement policy takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Query:
    """A waiting query; times are seconds on whatever clock the caller keeps."""

    length: int  # tokens, special tokens included
    arrival: float
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Queries that one runtime of one lane is to run together, never empty.

    A lane is an engine context of its own: lanes may run at the same time, a lane runs one batch at a time.
    """

    lane: int
    runtime: int  # index into the runtimes, ascending by max_length
    queries: Sequence[Query]
