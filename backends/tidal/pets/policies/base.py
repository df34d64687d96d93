"""What the scheduler takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class PetsQuery:
    """A waiting query; times are seconds on whatever clock the caller keeps."""

    task: str
    kind: str
    length: int  # tokens, special tokens included
    arrival: float
    deadline: float | None = None
    utility: float = 1.0  # what an answer in time is worth


@dataclass(eq=False, slots=True)
class PetsBatch:
    """Queries that are to run together, never empty.

    Attributes:
        queries: of any tasks; all of one where `copy` is set.
        copy: the task whose merged copy is to run them, None for the shared base with every task's terms.
        seconds: what it is predicted to take.
    """

    queries: Sequence[PetsQuery]
    copy: str | None
    seconds: float
