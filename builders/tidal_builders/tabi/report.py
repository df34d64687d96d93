"""The result of building a cascade, as data and as tables."""

from __future__ import annotations

from pydantic import Field
from rich.table import Table

from tidal.tabi.manifest import Candidate, Level, Metric, TabiManifest, Target
from tidal.tabi.serving_overhead import ServingOverhead
from tidal_builders.arlo.report import ArloReport
from tidal_builders.report import BuildReport
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.tabi.tables import candidate_table, level_table
from tidal_builders.tabi.tables import remarks as search_remarks


class CascadeReport(BuildReport):
    """Result of building a cascade.

    Attributes:
        models: Reports of the levels' own models, if they were built.
        metric: Metric of the scores.
        target: Target that had to be met.
        rows: Number of queries by part.
        levels: Levels ascending by score, with their own scores, engine latencies, temperatures and calibration errors.
        candidates: Candidates that were kept, ascending by mean latency on the selection part.
        chosen: Index of the candidate that meets the target; None if none does.
        serving: Time that serving adds to that of the engines; None if latencies are those of the engines only.
        warnings: Sentences on the reliability of the values.
        search: Result of the search with values for tables and plots, if the build searched; not part of the JSON.
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
