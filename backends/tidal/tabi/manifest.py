"""The manifest of a cascade's version: its levels, their calibration, and every candidate that was measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tidal.manifest import Strict, TokenizerInfo, Version, read_manifest
from tidal.tabi.paired import queries_needed
from tidal.tabi.serving_overhead import ServingOverhead

# What a cascade answers with: a label, a number, or whether the second text of a pair is relevant to the first.
CascadeTask = Literal["classification", "regression", "rerank"]
# Fields of a target that are limits beside one of the others.
LATENCY_LIMITS = ("p75_ms", "p99_ms")
# The metric of a task; larger is better.
Metric = Literal["accuracy", "pearson", "spearman", "r2"]


class Latency(Strict):
    """Milliseconds per query, one query at a time."""

    mean: float = Field(gt=0)
    p25: float = Field(gt=0)
    p50: float = Field(gt=0)
    p75: float = Field(gt=0)
    p99: float = Field(gt=0)


class RegressionCalibration(Strict):
    """The confidence of a regression: the probability that its value is within `tolerance` of the truth.

    The residual's standard deviation is interpolated between `values` (the model's own outputs), the forecast is a
    normal distribution, and its cumulative probabilities are recalibrated from `expected` to `observed`
    (Kuleshov et al., cited in Tabi §4.1).
    """

    tolerance: float = Field(gt=0)
    values: tuple[float, ...] = Field(min_length=1, description="ascending")
    deviations: tuple[float, ...] = Field(min_length=1, description="at `values`, above 0")
    expected: tuple[float, ...] = Field(min_length=2, description="cumulative probabilities, ascending from 0 to 1")
    observed: tuple[float, ...] = Field(min_length=2, description="at `expected`, ascending from 0 to 1")


class TemperatureChoice(Strict):
    """Whether a level's fitted temperature is used, by cross-validation on the calibration part.

    Gains are out of fold: each query is evaluated with a temperature that was fitted without it. They are positive if
    the fitted temperature is better than T = 1, and each comes with its standard error. None: too few queries to fit.
    """

    queries: int = Field(ge=0, description="number of queries of the calibration part")
    kept: bool
    fitted: float | None = Field(None, gt=0, description="temperature with the highest likelihood on all queries")
    nll_gain: float | None = Field(None, description="decrease of the mean negative log-likelihood")
    nll_error: float | None = None
    ece_gain: float | None = Field(None, description="decrease of the expected calibration error, 15 bins")
    ece_error: float | None = None

    @property
    def temperature(self) -> float:
        """T of Eq. 3."""
        return self.fitted if self.kept and self.fitted is not None else 1.0


class Calibration(Strict):
    """The parameters that turn a level's outputs into a confidence (Tabi Eq. 3), and their error on unseen queries."""

    temperature: float = Field(1.0, gt=0, description="T; 1 leaves the softmax unchanged")
    choice: TemperatureChoice | None = Field(None, description="why T has this value; None for a regression")
    regression: RegressionCalibration | None = None
    ece_before: float | None = Field(None, description="expected calibration error at T = 1, 15 bins")
    ece_after: float | None = None


class Level(Strict):
    """One model of the cascade; levels ascend by score."""

    name: str = Field(description="short name from the spec")
    model: str = Field(description="Triton model that serves it, on the backend `arlo`, or on `pets` if it is a task")
    task: str | None = Field(None, description="task of a shared encoder; None: the whole model is the level")
    version: int = Field(ge=1, description="version that was measured; of a shared encoder any later one may serve")
    fingerprint: str = Field(description="fingerprint in that version's manifest; for a task, the task's own")
    tokenizer: TokenizerInfo = Field(description="its file is in this version of the cascade; levels may share one")
    max_length: int = Field(ge=1, description="longest input in tokens")
    order: tuple[int, ...] | None = Field(
        None, description="for each of the cascade's labels its index in this level's logits; None: the same order"
    )
    attention: bool = Field(description="whether it gives `attention_received`")
    calibration: Calibration
    score: float = Field(description="metric of the level alone, on the report part")
    latency: Latency = Field(description="latency of its engine alone")


class Expected(Strict):
    """The figures of a candidate on one part of the data."""

    score: float
    latency: Latency
    returned: tuple[float, ...] = Field(description="share of the queries that each of its levels answered; sum 1")
    pruned: float = Field(ge=0, le=1, description="share of the words that pruning removed from re-routed queries")


class ExpectedLoss(Strict):
    """The loss of score of a candidate against the most accurate level alone, on the selection part."""

    measured: float = Field(description="score of that level minus the candidate's; below 0 if the candidate is better")
    upper: float = Field(description="upper confidence bound, one-sided, 95 %")
    place: int = Field(
        ge=0, description="place in the order in which the bounds are compared with a target; see `proven`"
    )
    queries: int = Field(
        ge=1, description="number of queries of the selection part; those with the same text count as fewer"
    )
    discordant: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the queries that only one of the two answers right; None for metrics other than accuracy",
    )

    def queries_for(self, target: float) -> float:
        """Return about how many queries would bring the bound down to a target; infinity if the loss is above it."""
        if self.discordant is not None:
            lost, gained = (self.discordant + self.measured) / 2, (self.discordant - self.measured) / 2
            return queries_needed(lost, gained, target)
        margin = target - self.measured
        return self.queries * ((self.upper - self.measured) / margin) ** 2 if margin > 0 else math.inf


class Candidate(Strict):
    """One configuration of the cascade, a single model included (Tabi §5)."""

    name: str
    levels: tuple[int, ...] = Field(min_length=1, description="indices of the manifest's levels, ascending")
    cutoff: float | None = Field(None, gt=0, lt=1, description="c of Eq. 4; None with a single level")
    slope: float | None = Field(None, gt=0, description="k of Eq. 4; None with a single level")
    pruning: float | None = Field(None, gt=0, description="α of Eq. 5; None prunes nothing")
    early: float | None = Field(
        None,
        ge=0,
        le=1,
        description="difficulty above which the early router sends a query to the last level, without the first; None: "
        "the first level reads every query",
    )
    weights: tuple[tuple[float, ...], ...] = Field(
        description="weights of Eq. 6: entry n-1 has the weights of the first n levels' answers; each entry sums to 1"
    )
    weighting: Literal["accuracy", "tuned"] | None = Field(
        None,
        description="weights proportional to the accuracy on re-routed queries (§4.3), or tuned; None: single level",
    )
    selection: Expected = Field(description="figures on the selection part, which the choice is made with")
    loss: ExpectedLoss | None = Field(
        None,
        description="loss against the most accurate level alone; None: not compared, since another candidate is faster "
        "and loses no more on the calibration part",
    )
    reported: Expected = Field(description="figures on the report part, which no choice depends on")

    @model_validator(mode="after")
    def _check(self) -> Candidate:
        if list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"levels must ascend, got {list(self.levels)}")
        if [len(entry) for entry in self.weights] != list(range(1, len(self.levels) + 1)):
            raise ValueError("weights must have one entry for each number of levels that may have run")
        if (self.cutoff is None or self.slope is None) != (len(self.levels) == 1):
            raise ValueError("cutoff and slope are required for several levels, and not accepted for a single one")
        if self.early is not None and len(self.levels) != 2:
            raise ValueError(f"early is for candidates of two levels, got {len(self.levels)}")
        return self


class EarlyRouterInfo(Strict):
    """A logistic regression on a query's n-grams that may skip a level; see `tidal.tabi.early`."""

    level: int = Field(ge=0, description="index of the level that it may skip")
    file: str = Field(description="file of its weights, in this version of the cascade")
    loss: float = Field(description="mean cross-entropy of its estimates on queries that it was not fitted on")
    constant_loss: float = Field(description="the same of the mean of the queries that it was fitted on")


class Target(Strict):
    """The target of a cascade: exactly one of accuracy, accuracy_loss, latency_ms and escalation_rate, and limits of
    percentiles of the latency. Among the candidates that meet an accuracy or a loss of it, the one with the lowest mean
    latency is chosen; among those that meet another target, the one with the highest score."""

    accuracy: float | None = Field(None, description="minimum score")
    accuracy_loss: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="maximum difference between the score of the most accurate level alone and that of the cascade on "
        "new queries, with 95 % confidence, in units of the metric: 0.01 is one percentage point of accuracy",
    )
    latency_ms: float | None = Field(None, gt=0, description="maximum mean latency in milliseconds")
    escalation_rate: float | None = Field(
        None, ge=0, le=1, description="maximum share of the queries that leave the first level"
    )
    p75_ms: float | None = Field(
        None,
        gt=0,
        description="maximum 75th percentile of the latency in milliseconds, beside one of the other targets",
    )
    p99_ms: float | None = Field(
        None,
        gt=0,
        description="maximum 99th percentile of the latency in milliseconds, beside one of the other targets",
    )

    @model_validator(mode="after")
    def _one(self) -> Target:
        targets = [name for name in type(self).model_fields if name not in LATENCY_LIMITS]
        named = [name for name in targets if getattr(self, name) is not None]
        if len(named) != 1:
            *first, last = targets
            raise ValueError(f"expected one of {', '.join(first)} and {last}, got {', '.join(named) or 'none'}")
        return self


class TabiManifest(Version):
    """A published version of a cascade."""

    kind: Literal["tabi"]
    task: CascadeTask
    pairs: bool = Field(description="whether queries are pairs of texts")
    metric: Metric
    labels: tuple[str, ...] = Field(
        description="labels of all levels, in this order; of rerankers those of relevance; empty for a regression"
    )
    data: str = Field(description="hash over the labelled data")
    rows: dict[str, int] = Field(description="queries by part: calibration, selection, report")
    levels: tuple[Level, ...] = Field(min_length=1)
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    early_routers: tuple[EarlyRouterInfo, ...] = Field((), description="early routers of the levels that have one")
    serving: ServingOverhead | None = Field(
        None, description="overhead included in all candidates' latencies; None: those are of the engines alone"
    )
    warnings: tuple[str, ...] = Field((), description="warnings of the build")
    target: Target
    chosen: int = Field(ge=0, description="index of the candidate that meets the target; see `select`")

    @model_validator(mode="after")
    def _check(self) -> TabiManifest:
        for candidate in self.candidates:
            if candidate.levels[-1] >= len(self.levels):
                raise ValueError(f"candidate {candidate.name} names level {candidate.levels[-1]} of {len(self.levels)}")
            if candidate.early is not None and candidate.levels[0] not in {each.level for each in self.early_routers}:
                raise ValueError(f"candidate {candidate.name} has early, but its first level has no early router")
            for index in candidate.levels[:-1]:
                if candidate.pruning is not None and not self.levels[index].attention:
                    raise ValueError(
                        f"candidate {candidate.name} prunes by level {self.levels[index].name}, which has no attention"
                    )
        if self.chosen >= len(self.candidates):
            raise ValueError(f"chosen is {self.chosen}, but there are {len(self.candidates)} candidates")
        return self

    @property
    def max_length(self) -> int:
        """Maximum input length of any level, in tokens."""
        return max(level.max_length for level in self.levels)


def load_tabi_manifest(version_dir: Path) -> TabiManifest:
    """Read and validate `manifest.json` of a version of a cascade.

    Args:
        version_dir: Folder of the version.

    Raises:
        InvalidArgument: The file is missing, is not valid, or names a field that this release does not know.
    """
    return read_manifest(version_dir, TabiManifest)
