"""A scenario's figures, as they are judged, printed and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# What a figure of failed requests has to rest on, in a full run.
LEAST_REQUESTS, LEAST_CHANGES = 1000, 3


@dataclass(frozen=True, slots=True)
class Row:
    """One promise and what came of it.

    Attributes:
        what: the promise.
        requests: sent while it was tried, timeouts counted.
        changes: what happened meanwhile: kills, publishes, tasks, …; 0 where nothing is counted.
        failed: requests of those that should have been answered and were not, or not as they should.
        measured: the figure that is judged, in `unit`.
        bound: relation and number, as `<= 5`.
        note: what a reader should know beside it.
        enough: whether the figure rests on as much as it has to.
    """

    what: str
    requests: int
    changes: int
    failed: int
    measured: float
    unit: str
    bound: str
    note: str = ""
    enough: bool = True

    @property
    def holds(self) -> bool:
        """Whether the figure keeps to its bound and rests on enough, and no request failed."""
        relation, number = self.bound.split()
        bound = float(number)
        kept = {"<=": self.measured <= bound, ">=": self.measured >= bound, "==": self.measured == bound}
        return self.enough and not self.failed and kept[relation]

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {**asdict(self), "holds": self.holds}


def none_failed(what: str, requests: int, changes: int, failures: Sequence[str], *, quick: bool) -> Row:
    """The row of a promise that no request fails; a quick run may rest on less."""
    enough = quick or (requests >= LEAST_REQUESTS and changes >= LEAST_CHANGES)
    note = failures[0] if failures else "" if enough else f"rests on less than {LEAST_REQUESTS} and {LEAST_CHANGES}"
    return Row(what, requests, changes, len(failures), len(failures), "failed", "== 0", note[:300], enough)


COLUMNS = ("what", "requests", "changes", "failed", "measured", "bound", "holds", "note")


def cells(row: Row) -> tuple[str, ...]:
    """A row as it is shown."""
    measured = f"{row.measured:.3g}" if row.measured < 1000 else f"{row.measured:,.0f}"
    holds = "yes" if row.holds else "NO"
    numbers = (f"{row.requests:,}", str(row.changes or "-"), str(row.failed))
    return row.what, *numbers, f"{measured} {row.unit}", row.bound, holds, row.note


def markdown(rows: Sequence[Row], head: str) -> str:
    """The page of a run: a sentence or more, and the table."""
    lines = [" | ".join(COLUMNS), " | ".join(["---"] * len(COLUMNS))]
    lines += [" | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells(row)) for row in rows]
    return "\n".join(["# Reliability, as measured", "", head, "", *(f"| {line} |" for line in lines), ""])
