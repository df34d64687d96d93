"""What came of building a cascade, as data."""

from __future__ import annotations

from pydantic import Field

from tidal.tabi.manifest import Candidate, Level, Metric, TabiManifest, Target
from tidal_builders.report import BuildReport, BuildResult


class CascadeReport(BuildResult):
    """Outcome for a spec of a cascade.

    Attributes:
        models: outcomes of the levels' own models, where they had to be looked at.
        metric: what scores are.
        target: what had to be met.
        rows: queries by part.
        levels: ascending by score; with scores and latencies alone, temperatures, and calibration errors.
        candidates: all that were kept, by mean latency on the selection part.
        chosen: index of the one that meets the target; None where none does.
    """

    models: tuple[BuildReport, ...] = ()
    metric: Metric | None = None
    target: Target | None = None
    rows: dict[str, int] = Field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    chosen: int | None = None


def of_manifest(manifest: TabiManifest, version: int | None) -> CascadeReport:
    """The report of a version that is published."""
    return CascadeReport(
        name=manifest.name,
        outcome="current",
        version=version,
        metric=manifest.metric,
        target=manifest.target,
        rows=manifest.rows,
        levels=manifest.levels,
        candidates=manifest.candidates,
        chosen=manifest.chosen,
    )
