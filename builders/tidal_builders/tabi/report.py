"""The result of building a cascade, as data and as tables."""

from __future__ import annotations

from pydantic import Field
from rich.table import Table

from tidal.tabi.manifest import Candidate, Level, Metric, ServingOverhead, TabiManifest, Target
from tidal_builders.arlo.report import ArloReport
from tidal_builders.report import BuildReport
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.tabi.tables import candidate_table, level_table
from tidal_builders.tabi.tables import remarks as search_remarks


class CascadeReport(BuildReport):
    """Result of building a cascade.

    Attributes:
        models: outcomes of the levels' own models, where they had to be looked at.
        metric: what scores are.
        target: what had to be met.
        rows: queries by part.
        levels: ascending by score; with scores and engine latencies alone, temperatures, and calibration errors.
        candidates: all that were kept, by mean latency on the selection part.
        chosen: index of the one that meets the target; None where none does.
        serving: what serving adds to the engines' time; None where the latencies are the engines' alone.
        warnings: what the operator should know before relying on the figures.
        search: the same with what only tables and pictures show, of a build that searched; not part of the JSON.
    """

    models: tuple[ArloReport, ...] = ()
    metric: Metric | None = None
    target: Target | None = None
    rows: dict[str, int] = Field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    chosen: int | None = None
    serving: ServingOverhead | None = None
    warnings: tuple[str, ...] = ()
    search: SearchReport | None = Field(None, exclude=True)

    def tables(self) -> list[Table]:
        """Levels and candidates of a search, also if none of the candidates meets the target."""
        return [level_table(self.search), candidate_table(self.search)] if self.search is not None else []

    def remarks(self) -> list[str]:
        """Sentences on the search."""
        return list(search_remarks(self.search)) if self.search is not None else []

    def parts(self) -> tuple[BuildReport, ...]:
        """Reports of the levels' own models."""
        return self.models


def of_manifest(manifest: TabiManifest, version: int | None) -> CascadeReport:
    """The report of a published version.

    Args:
        manifest: Manifest of the version.
        version: Number of the version.
    """
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
        serving=manifest.serving,
        warnings=manifest.warnings,
    )
