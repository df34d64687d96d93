"""What came of building a vision transformer, as data and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from rich.table import Table

from tidal.otas.manifest import GammaVerification, OtasManifest, OtasTrial, Way
from tidal_builders.report import BuildReport


class GammaRow(BaseModel):
    """What one γ costs and how exact it is."""

    gamma: int
    form: Way
    max_error: float
    throughput: float
    batch_ms: dict[int, float]


class OtasReport(BuildReport):
    """Outcome for a spec of a vision transformer.

    Attributes:
        base: digest that tasks name.
        threads: of an engine.
        rows: one a γ; `throughput` in images a second at the best batch size, `batch_ms` by number of images.
        verification: of every γ.
        trials: forms of engines that were compared.
    """

    base: str | None = None
    threads: int | None = None
    rows: tuple[GammaRow, ...] = ()
    verification: tuple[GammaVerification, ...] = ()
    trials: tuple[OtasTrial, ...] = ()

    def tables(self) -> list[Table]:
        """The measured costs of a new version."""
        return [gamma_table(self)] if self.outcome == "published" else []


def report_of(manifest: OtasManifest, version: int | None) -> OtasReport:
    """The report of a version that is published."""
    profile = manifest.profile
    return OtasReport(
        name=manifest.name,
        outcome="current",
        version=version,
        base=manifest.base,
        threads=manifest.threads,
        verification=manifest.verification,
        trials=manifest.trials,
        rows=tuple(
            GammaRow(
                gamma=gamma,
                form=_way([engine.batch for engine in manifest.engines_of(gamma)]),
                max_error=found.max_abs_error,
                throughput=profile.throughput(gamma),
                batch_ms=dict(zip(profile.batches, medians, strict=True)),
            )
            for gamma, found, medians in zip(manifest.gammas, manifest.verification, profile.median_ms, strict=True)
        ),
    )


def _way(batches: Sequence[int | None]) -> Way:
    """How engines of these batch sizes divide a batch."""
    if None not in batches:
        return "static"
    return "both" if len(batches) > 1 else "dynamic"


def gamma_table(report: OtasReport) -> Table:
    """What was measured, for the terminal."""
    title = f"{report.name}: base {(report.base or '')[:12]}, ms of a batch by number of images"
    grid = Table(title=title, title_justify="left")
    sizes = list(report.rows[0].batch_ms) if report.rows else []
    for heading in ("γ", "engines", "max error", "images/s", *map(str, sizes)):
        grid.add_column(heading, justify="left" if heading == "engines" else "right")
    for row in report.rows:
        times = [f"{row.batch_ms[size]:.2f}" for size in sizes]
        grid.add_row(f"{row.gamma:+d}", row.form, f"{row.max_error:.2g}", f"{row.throughput:.1f}", *times)
    return grid
