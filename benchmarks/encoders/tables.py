"""Tables of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.encoders.cells import Case
from benchmarks.encoders.run import EncoderCell, EncoderRun
from benchmarks.encoders.systems import SEARCHED
from benchmarks.report import Report

_MISSING = "-"
_COLUMNS = ["system", "1/s (rounds)", "mean ms", "p50 ms", "p99 ms (rounds)", "batch", "cores", "load", "failed"]


def add_search(report: Report, run: EncoderRun) -> None:
    """Add what the search measured, and what does not run."""
    columns = ["peer", "settings", *(f"1/s at {in_flight}" for in_flight in SEARCHED)]
    report.add_table("search of the peers' settings, other texts", columns, run.searched)
    missing = [[f"{task}, {system}", reason] for task, found in run.missing.items() for system, reason in found.items()]
    if missing:
        report.add_table("left out", ["peer", "reason"], missing)


def add_agreement(report: Report, run: EncoderRun) -> None:
    """Add the agreement of each system's answers with the source model's."""
    rows = []
    for system in dict.fromkeys(system for found in run.agreement.values() for system in found):
        cosine, error = (run.agreement.get(task, {}).get(system) for task in ("embed", "rerank"))
        rows.append(
            [system, _MISSING if cosine is None else f"{cosine:.7f}", _MISSING if error is None else f"{error:.1e}"]
        )
    columns = ["system", "embeddings: smallest cosine", "scores: largest difference"]
    report.add_table("answers against transformers in fp32", columns, rows)


def add_cases(report: Report, run: EncoderRun, cases: Sequence[Case]) -> None:
    """Add a table for each case: medians over the rounds."""
    for case in cases:
        if case.name in run.cells:
            rows = [[system, *_row(rounds)] for system, rounds in run.cells[case.name].items() if rounds]
            report.add_table(f"{case.name}, medians", _COLUMNS, rows)


def _row(rounds: Sequence[EncoderCell]) -> list[str]:
    def median(figure: str) -> float:
        return float(statistics.median(getattr(cell, figure) for cell in rounds))

    def spread(figure: str, form: str) -> str:
        values = [getattr(cell, figure) for cell in rounds]
        return f"{format(median(figure), form)} ({format(min(values), form)} to {format(max(values), form)})"

    batches = [cell.mean_batch for cell in rounds if cell.mean_batch is not None]
    return [
        spread("per_second", ".1f"),
        f"{median('mean_ms'):.1f}",
        f"{median('p50_ms'):.1f}",
        spread("p99_ms", ".1f"),
        f"{statistics.median(batches):.1f}" if batches else _MISSING,
        f"{median('utilisation'):.0%}",
        f"{median('client'):.0%}",
        str(sum(cell.failed for cell in rounds)),
    ]
