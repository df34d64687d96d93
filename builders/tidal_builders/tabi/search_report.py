"""Result of searching a cascade's candidates, as data for tables, plots and the published version."""

from __future__ import annotations

from pydantic import BaseModel

from tidal.tabi.manifest import Calibration, Candidate, Latency, Metric, Target
from tidal.tabi.serving_overhead import ServingOverhead


class Bin(BaseModel):
    """A bin of queries with similar confidence: mean confidence, accuracy, and number of queries."""

    confidence: float
    accuracy: float
    count: int


class LevelReport(BaseModel):
    """The figures of a level alone, on the report part; its latency is that of its engine."""

    name: str
    score: float
    latency: Latency
    calibration: Calibration
    reliability_before: tuple[Bin, ...]
    reliability_after: tuple[Bin, ...]


class SearchReport(BaseModel):
    """The result of a search and of the choice; levels ascend by score, candidates by latency.

    Attributes:
        metric: Metric of the scores.
        target: Target of the choice.
        rows: Number of queries by part.
        levels: Figures of each level alone.
        candidates: Kept candidates.
        chosen: Index of the candidate that meets the target; None if none does.
        tried: Number of configurations of several levels that were evaluated.
        too_slow: Number of those that miss the rule on the p75 latency.
        serving: Time that serving adds to the engines; None if the latencies are of the engines alone.
        warnings: Warnings to consider before relying on the figures.
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
