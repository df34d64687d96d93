"""The result of building a text classifier, as data and as a table."""

from __future__ import annotations

import itertools

from pydantic import BaseModel
from rich.table import Table

from tidal.arlo.manifest import ArloManifest, Trial
from tidal.manifest import Verification
from tidal_builders.report import BuildReport


class ArloReportRow(BaseModel):
    """One measured cell: a padded length and a batch size. A model that misses its tolerance is not timed."""

    length: int
    batch: int | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    parallel_ms: float | None = None
    megabytes: float | None = None
    max_error: float | None
    verdict: str


class ArloReport(BuildReport):
    """Result of building a text classifier.

    Attributes:
        engine: Engine kind.
        precision: Precision that was chosen.
        form: `static`, `dynamic` or `mixed` runtimes.
        lengths: Input lengths of the runtimes in tokens, ascending.
        verification: Comparison with the source model.
        trials: Alternatives that were compared.
        rows: Measured cells.
    """

    engine: str | None = None
    precision: str | None = None
    form: str | None = None
    lengths: tuple[int, ...] = ()
    verification: Verification | None = None
    trials: tuple[Trial, ...] = ()
    rows: tuple[ArloReportRow, ...] = ()

    def tables(self) -> list[Table]:
        """The latency table, if cells were measured or verified."""
        return [latency_table(self)] if self.rows else []


def report_of(manifest: ArloManifest, version: int | None) -> ArloReport:
    """The report of a published version.

    Args:
        manifest: Manifest of the version.
        version: Number of the version.
    """
    return ArloReport(
        name=manifest.name,
        outcome="current",
        version=version,
        engine=manifest.engine,
        precision=manifest.precision,
        form=manifest.form,
        lengths=tuple(runtime.max_length for runtime in manifest.runtimes),
        verification=manifest.verification,
        trials=manifest.trials,
    )


def rows_of(manifest: ArloManifest, errors: dict[int, float | None]) -> tuple[ArloReportRow, ...]:
    """The profile's cells.

    Args:
        manifest: Manifest of the version.
        errors: Largest logit error of each runtime by its length; None where no sample had that length.
    """
    size = sum(file.bytes for file in manifest.files if file.path.startswith("engines/")) / 1e6
    profile, rows = manifest.profile, []
    parallel_rows = manifest.parallel.median_ms if manifest.parallel else itertools.repeat(())
    for length, medians, p95s, parallels in zip(
        profile.lengths, profile.median_ms, profile.p95_ms, parallel_rows, strict=False
    ):
        serving = next(runtime.max_length for runtime in manifest.runtimes if runtime.max_length >= length)
        for batch, median, p95, parallel in itertools.zip_longest(
            profile.batches[: len(medians)], medians, p95s, parallels
        ):
            rows.append(
                ArloReportRow(
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


def latency_table(report: ArloReport) -> Table:
    """The report's cells for the terminal."""
    title = f"{report.name}: {report.engine} {report.precision}, {report.form}"
    grid = Table(title=title, title_justify="left")
    headings = ("length", "batch", "median ms", "p95 ms", "one per thread ms", "size MB", "max error", "verdict")
    for heading in headings:
        grid.add_column(heading, justify="left" if heading == "verdict" else "right")
    for row, following in itertools.zip_longest(report.rows, report.rows[1:]):
        cells = (
            _cell(row.batch, "d"),
            _cell(row.median_ms, ".2f"),
            _cell(row.p95_ms, ".2f"),
            _cell(row.parallel_ms, ".2f"),
            _cell(row.megabytes, ".1f"),
            _cell(row.max_error, ".2g"),
        )
        grid.add_row(
            str(row.length), *cells, row.verdict, end_section=following is None or following.length != row.length
        )
    return grid


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
