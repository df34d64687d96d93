"""What came of a build, as data and as a table."""

from __future__ import annotations

import itertools
from typing import Literal

from pydantic import BaseModel
from rich.table import Table

from tidal.arlo.manifest import ArloManifest, Trial
from tidal.manifest import Verification

Outcome = Literal["published", "current", "stale", "missed"]


class ReportRow(BaseModel):
    """One measured cell: a padded length and a batch size. What misses its tolerance is not timed."""

    length: int
    batch: int | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    parallel_ms: float | None = None
    megabytes: float | None = None
    max_error: float | None
    verdict: str


class BuildResult(BaseModel):
    """Outcome for one spec of any kind.

    `published`: a new version is there; `current`: nothing had to be done; `stale`: a build is needed and was not
    asked for; `missed`: the result misses its tolerance or target and was not published. `warnings` are sentences on
    what the source model has and is not served.
    """

    name: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    version: int | None = None
    reused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0


class BuildReport(BuildResult):
    """Outcome for a spec of a single model."""

    engine: str | None = None
    precision: str | None = None
    form: str | None = None
    lengths: tuple[int, ...] = ()
    verification: Verification | None = None
    trials: tuple[Trial, ...] = ()
    rows: tuple[ReportRow, ...] = ()


def rows_of(manifest: ArloManifest, errors: dict[int, float | None]) -> tuple[ReportRow, ...]:
    """The profile's cells; `errors` gives the largest logit error of each runtime, by its length."""
    size = sum(file.bytes for file in manifest.files if file.path.startswith("engines/")) / 1e6
    profile, rows = manifest.profile, []
    split = manifest.parallel.median_ms if manifest.parallel else itertools.repeat(())
    for length, medians, p95s, splits in zip(profile.lengths, profile.median_ms, profile.p95_ms, split, strict=False):
        serving = next(runtime.max_length for runtime in manifest.runtimes if runtime.max_length >= length)
        for batch, median, p95, parallel in itertools.zip_longest(
            profile.batches[: len(medians)], medians, p95s, splits
        ):
            rows.append(
                ReportRow(
                    length=length,
                    batch=batch,
                    median_ms=median,
                    p95_ms=p95,
                    parallel_ms=parallel,
                    megabytes=size,
                    max_error=errors.get(serving),
                    verdict="ok",
                )
            )
    return tuple(rows)


def table(report: BuildReport) -> Table:
    """The report's cells for the terminal."""
    title = f"{report.name}: {report.engine} {report.precision}, {report.form}"
    grid = Table(title=title, title_justify="left")
    for heading in ("length", "batch", "median ms", "p95 ms", "one a thread ms", "size MB", "max error", "verdict"):
        grid.add_column(heading, justify="left" if heading == "verdict" else "right")
    for row, following in itertools.zip_longest(report.rows, report.rows[1:]):
        cells = (
            _shown(row.batch, "d"),
            _shown(row.median_ms, ".2f"),
            _shown(row.p95_ms, ".2f"),
            _shown(row.parallel_ms, ".2f"),
            _shown(row.megabytes, ".1f"),
            _shown(row.max_error, ".2g"),
        )
        grid.add_row(
            str(row.length), *cells, row.verdict, end_section=following is None or following.length != row.length
        )
    return grid


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
