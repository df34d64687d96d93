"""The rows of the reliability table: one guarantee each, with its figure and its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Minimum number of requests and changes behind a figure of failed requests, in a full run.
MIN_REQUESTS, MIN_CHANGES = 1000, 3


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One guarantee with its measured figure.

    Attributes:
        what: The guarantee.
        requests: Number of requests that were sent meanwhile, including timeouts.
        changes: Number of events meanwhile: kills, publications, tasks, …; 0 if they are not counted.
        failed: Number of requests that should have been answered and were not, or not correctly.
        measured: Figure to compare with the bound, in `unit`.
        unit: Unit of the figure.
        bound: Relation and number, such as `<= 5`.
        note: Remark for the table.
        enough: Whether the figure is based on enough requests and changes.
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
        """Whether the figure is within its bound, is based on enough requests, and no request failed."""
        relation, number = self.bound.split()
        bound = float(number)
        kept = {"<=": self.measured <= bound, ">=": self.measured >= bound, "==": self.measured == bound}
        return self.enough and not self.failed and kept[relation]

    def as_json(self) -> dict[str, Any]:
        """Return the row for `json.dumps`."""
        return {**asdict(self), "holds": self.holds}


def none_failed(what: str, requests: int, changes: int, failures: Sequence[str], *, quick: bool) -> Guarantee:
    """Return the row of a guarantee that no request fails.

    Args:
        what: The guarantee.
        requests: Number of requests that were sent.
        changes: Number of events meanwhile.
        failures: Outcomes of failed requests.
        quick: Whether fewer requests and changes suffice.
    """
    enough = quick or (requests >= MIN_REQUESTS and changes >= MIN_CHANGES)
    note = failures[0] if failures else "" if enough else f"rests on less than {MIN_REQUESTS} and {MIN_CHANGES}"
    return Guarantee(what, requests, changes, len(failures), len(failures), "failed", "== 0", note[:300], enough)


COLUMNS = ("what", "requests", "changes", "failed", "measured", "bound", "holds", "note")


def cells(row: Guarantee) -> tuple[str, ...]:
    """Return the cells of a row for printing."""
    measured = f"{row.measured:.3g}" if row.measured < 1000 else f"{row.measured:,.0f}"
    holds = "yes" if row.holds else "NO"
    numbers = (f"{row.requests:,}", str(row.changes or "-"), str(row.failed))
    return row.what, *numbers, f"{measured} {row.unit}", row.bound, holds, row.note


def markdown(rows: Sequence[Guarantee], head: str) -> str:
    """Return the Markdown page of a run.

    Args:
        rows: Rows of the table.
        head: Paragraph before the table.
    """
    lines = [" | ".join(COLUMNS), " | ".join(["---"] * len(COLUMNS))]
    lines += [" | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells(row)) for row in rows]
    return "\n".join(["# Reliability, as measured", "", head, "", *(f"| {line} |" for line in lines), ""])
