"""`python -m reliability [--quick] [--json FILE] [--only NAME]`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.report import RESULTS, machine, machine_line
from reliability.rows import COLUMNS, Guarantee, cells, markdown
from tidal.engine_model.claims import CLAIMS_VARIABLE


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests and changes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows here.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this scenario; may be repeated.")] = None,
) -> None:
    """Run all failure scenarios against a server; exit code 1 if a guarantee does not hold.

    A full run of all scenarios writes the table to benchmarks/results/reliability.md.
    """
    # Before torch is imported: in tiny models its threads wait for each other for longer than the work takes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from reliability.run import SCENARIOS, run

    if unknown := set(only or ()).difference(SCENARIOS):
        raise typer.BadParameter(f"unknown scenario '{min(unknown)}'; accepted: {', '.join(SCENARIOS)}")
    begin = time.monotonic()

    def report_progress(what: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f} s] {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="tidal-claims-") as claims:
        os.environ[CLAIMS_VARIABLE] = claims  # core claims independent of other servers on this machine
        rows = run(only or list(SCENARIOS), quick=quick, report_progress=report_progress)
    _print(rows)
    head = f"`make reliability` on {machine_line()}, in {(time.monotonic() - begin) / 60:.1f} minutes."
    if json_file is not None:
        content = {"quick": quick, "machine": machine(), "rows": [row.as_json() for row in rows]}
        json_file.write_text(json.dumps(content, indent=1) + "\n")
    if not quick and not only:
        (RESULTS / "reliability.md").write_text(markdown(rows, head))
    raise typer.Exit(0 if all(row.holds for row in rows) else 1)


def _print(rows: list[Guarantee]) -> None:
    table = Table(title="reliability", title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if 0 < number < 6 else "left")
    for row in rows:
        table.add_row(*map(escape, cells(row)))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    typer.run(main)
