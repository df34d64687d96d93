"""Result of searching a cascade's candidates, as data for tables, plots and the published version."""

from __future__ import annotations

from pydantic import BaseModel

from tidal.tabi.manifest import Calibration, Candidate, Latency, Metric, ServingOverhead, Target


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
