"""The result of building a vision transformer, as data and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from rich.table import Table

from tidal.otas.manifest import EngineChoice, GammaVerification, OtasManifest, OtasTrial
from tidal_builders.report import BuildReport


class GammaRow(BaseModel):
    """Measured cost and error of one γ.

    Attributes:
        gamma: Change of the number of tokens per layer.
        form: Way in which engines divide a batch.
        max_error: Largest difference of any component of the features from the source model's.
        throughput: Images per second at the best batch size.
        batch_ms: Time of a batch in milliseconds, by number of images.
    """

    gamma: int
    form: EngineChoice
    max_error: float
    throughput: float
    batch_ms: dict[int, float]


class OtasReport(BuildReport):
    """Result of building a vision transformer.

    Attributes:
        base: Digest of the weights, which tasks name.
        threads: CPU threads of an engine.
        rows: One row per γ.
        verification: Comparison with the source model, per γ.
        trials: Forms of engines that were compared.
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
    """The report of a published version.

    Args:
        manifest: Manifest of the version.
        version: Number of the version.
    """
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
                form=_choice([engine.batch for engine in manifest.engines_of(gamma)]),
                max_error=found.max_abs_error,
                throughput=profile.throughput(gamma),
                batch_ms=dict(zip(profile.batches, medians, strict=True)),
            )
            for gamma, found, medians in zip(manifest.gammas, manifest.verification, profile.median_ms, strict=True)
        ),
    )


def _choice(batches: Sequence[int | None]) -> EngineChoice:
    """The way in which engines of these batch sizes divide a batch."""
    if None not in batches:
        return "static"
    return "both" if len(batches) > 1 else "dynamic"


def gamma_table(report: OtasReport) -> Table:
    """The measured costs for the terminal."""
    title = f"{report.name}: base {(report.base or '')[:12]}, ms per batch by number of images"
    grid = Table(title=title, title_justify="left")
    sizes = list(report.rows[0].batch_ms) if report.rows else []
    for heading in ("γ", "engines", "max error", "images/s", *map(str, sizes)):
        grid.add_column(heading, justify="left" if heading == "engines" else "right")
    for row in report.rows:
        times = [f"{row.batch_ms[size]:.2f}" for size in sizes]
        grid.add_row(f"{row.gamma:+d}", row.form, f"{row.max_error:.2g}", f"{row.throughput:.1f}", *times)
    return grid
