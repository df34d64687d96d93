"""The report of a benchmark: claims, tables, the machine it ran on, and the JSON."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidal import device
from tidal.device import library_version

RESULTS = Path(__file__).parent / "results"
_STARTED_S = time.monotonic()


@dataclass(frozen=True, slots=True)
class Claim:
    """A measured figure with its goal.

    Attributes:
        name: Name of the claim.
        goal: Relation and number, such as "<= 1.0" or ">= 0.999".
        measured: Figure of this run.
        paper: Published figure, if there is one.
        note: Remark for the table.
    """

    name: str
    goal: str
    measured: float
    paper: str | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the measured figure meets the goal."""
        relation, bound = self.goal.split()
        return {
            "<=": self.measured <= float(bound),
            ">=": self.measured >= float(bound),
            "==": self.measured == float(bound),
            ">": self.measured > float(bound),
        }[relation]


@dataclass(slots=True)
class Report:
    """A benchmark's output: printed tables, claims, and all measurements."""

    name: str
    quick: bool
    claims: list[Claim] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)

    def add_table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """Print a table and store it for the report."""
        table = Table(title=title, title_justify="left")
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(escape, row))  # name[case] is not markup
        self.tables.append(table)
        Console(width=160).print(table)

    def document(self) -> dict[str, Any]:
        """Return the content of the JSON file, from which figures are drawn."""
        content = {
            "benchmark": self.name,
            "quick": self.quick,
            "machine": machine(),
            "claims": [{**asdict(c), "holds": c.holds} for c in self.claims],
            "measured": self.measured,
        }
        found: dict[str, Any] = json.loads(json.dumps(content))
        return found

    def finish(self, json_file: Path | None) -> Literal[0]:
        """Print the claims; with `json_file`, write the JSON there and the tables beside it (`.txt`)."""
        rows = [
            [c.name, c.paper or "-", c.goal, f"{c.measured:.4g}", "yes" if c.holds else "NO", c.note]
            for c in self.claims
        ]
        self.add_table("claims", ["name", "paper", "goal", "measured", "holds", "note"], rows)
        self.save(json_file)
        return 0

    def save(self, json_file: Path | None) -> None:
        """Write what was reported so far, the JSON to `json_file` and the tables beside it (`.txt`); None: nothing."""
        if json_file is None:
            return
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(self.document(), indent=1) + "\n")
        with json_file.with_suffix(".txt").open("w") as file:
            console = Console(file=file, width=160)
            console.print(f"{self.name}{' --quick' if self.quick else ''}, {machine_line()}\n")
            for table in self.tables:
                console.print(table)


def machine() -> dict[str, Any]:
    """Return processor, cores, package versions and date of this run."""
    packages = ("nvidia-pytriton", "tritonclient", "openvino", "torch", "transformers", "tokenizers", "numpy")
    return {
        "cpu": str(device.cpu()),
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "packages": {name: version for name in packages if (version := library_version(name))},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def machine_line(of: Mapping[str, Any] | None = None) -> str:
    """Return a machine in one line, for the head of a report.

    Args:
        of: Machine as `machine` returns it; None: this machine.
    """
    m = machine() if of is None else of
    packages = ", ".join(f"{name} {version}" for name, version in m["packages"].items())
    return f"{m['date']}, {m['cpu']}, {m['cores']} cores, Python {m['python']}, {packages}"


def progress(text: str) -> None:
    """Print what is being measured, with the elapsed seconds, to stderr.

    Args:
        text: Current step.
    """
    print(f".. {time.monotonic() - _STARTED_S:4.0f} s  {text}", file=sys.stderr, flush=True)
