"""What came of building a cascade, as data."""

from __future__ import annotations

from pydantic import BaseModel, Field
from rich.table import Table

from tidal.tabi.manifest import Calibration, Candidate, Latency, Level, Metric, ServingOverhead, TabiManifest, Target
from tidal_builders.arlo.report import ArloReport
from tidal_builders.report import BuildReport


class Bin(BaseModel):
    """Queries of similar confidence: their mean confidence, the share that is right, and how many they are."""

    confidence: float
    accuracy: float
    count: int


class LevelReport(BaseModel):
    """A level alone, on the report part; its latency is that of its engine."""

    name: str
    score: float
    latency: Latency
    calibration: Calibration
    reliability_before: tuple[Bin, ...]
    reliability_after: tuple[Bin, ...]


class SearchReport(BaseModel):
    """What a search found and what was chosen of it; levels ascend by score, candidates by latency.

    Attributes:
        metric: what scores are.
        target: what had to be met.
        rows: queries by part.
        levels: each alone.
        candidates: all that were kept.
        chosen: index of the one that meets the target; None where none does.
        tried: configurations of several levels that were evaluated.
        too_slow: those of them that miss the rule on the p75 latency.
        serving: what serving adds to the engines' time; None where the latencies are the engines' alone.
        warnings: what the operator should know before relying on the figures.
    """

    metric: Metric
    target: Target
    rows: dict[str, int]
    levels: tuple[LevelReport, ...]
    candidates: tuple[Candidate, ...]
    chosen: int | None
    tried: int
    too_slow: int
    serving: ServingOverhead | None = None
    warnings: tuple[str, ...] = ()


class CascadeReport(BuildReport):
    """Outcome for a spec of a cascade.

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
        from tidal_builders.tabi.tables import candidate_table, level_table

        return [level_table(self.search), candidate_table(self.search)] if self.search is not None else []

    def remarks(self) -> list[str]:
        """Sentences on the search."""
        from tidal_builders.tabi.tables import remarks

        return list(remarks(self.search)) if self.search is not None else []

    def parts(self) -> tuple[BuildReport, ...]:
        """Reports of the levels' own models."""
        return self.models


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
        serving=manifest.serving,
        warnings=manifest.warnings,
    )
