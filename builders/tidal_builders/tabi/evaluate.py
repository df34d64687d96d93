"""Score and latency of a combination of levels at any cut-off, without running anything again.

Re-routing is random (Tabi Eq. 4), so every figure is an expectation over the draws: each query counts at each level
with the probability that this level answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.serving.softmax import softmax
from tidal.tabi.equations import combine, confidence, reroute_probability
from tidal.tabi.manifest import Calibration, Expected, Latency, Metric
from tidal_builders.tabi.data import LevelOutputs

Floats = npt.NDArray[np.float64]
Weights = tuple[float, ...]


class LevelChain:
    """A combination of levels, each run on every query, from which any cut-off, slope and weights can be evaluated.

    Args:
        outputs: Outputs of each level in order, on n queries, which are pruned from the second level on.
        calibrations: Calibrations of the same levels.
        truth: Correct labels or values, [n].
        words: Number of words of each query, [n].
        removed: Number of words that pruning has removed before the second level and each further one,
            [levels - 1, n].
        metric: Metric of the answers.
        added_ms: Milliseconds that serving adds to the time of each level's engine; None adds nothing.
    """

    def __init__(
        self,
        outputs: Sequence[LevelOutputs],
        calibrations: Sequence[Calibration],
        truth: npt.NDArray[np.generic],
        *,
        words: npt.NDArray[np.int64],
        removed: npt.NDArray[np.int64],
        metric: Metric,
        added_ms: Sequence[float] | None = None,
    ) -> None:
        self.depth = len(outputs)
        self.truth = truth
        self.metric: Metric = metric
        self._words, self._removed = words, removed
        # Inputs of the ensemble (Eq. 6): probabilities at T = 1, or a regression's values.
        self._votes = [softmax(each.logits) if metric == "accuracy" else each.logits for each in outputs]
        self._own = [predictions(metric, votes) for votes in self._votes]
        self._confidences = [
            confidence(calibration, each.logits)
            for calibration, each in zip(calibrations[:-1], outputs[:-1], strict=True)
        ]
        added = [0.0] * self.depth if added_ms is None else added_ms
        times = [each.latency_ms + ms for each, ms in zip(outputs, added, strict=True)]
        self.elapsed_ms: Floats = np.cumsum(times, axis=0)
        """Milliseconds until each level has answered each query, [levels, n]."""
        self._by_latency = np.argsort(self.elapsed_ms.ravel(), kind="stable")
        self._sorted_ms = self.elapsed_ms.ravel()[self._by_latency]
        self._answers: dict[Weights, npt.NDArray[np.generic]] = {}

    def reach(self, cutoff: float | None, slope: float | None) -> Floats:
        """Return the probability that each query runs each level, [levels, n].

        Args:
            cutoff: Cut-off c of Eq. 4; None for a single level.
            slope: Slope k of Eq. 4; None for a single level.
        """
        if cutoff is None or slope is None:
            assert self.depth == 1
            return np.ones((1, len(self.truth)))
        escalations = [np.asarray(reroute_probability(each, cutoff, slope)) for each in self._confidences]
        return np.cumprod([np.ones(len(self.truth)), *escalations], axis=0)

    def answers(self, weights: Weights) -> npt.NDArray[np.generic]:
        """Return the labels or values of the ensemble of the first `len(weights)` levels, [n].

        Args:
            weights: Weights of these levels, Eq. 6.
        """
        if weights not in self._answers:
            ensemble = combine(weights, self._votes[: len(weights)])
            self._answers[weights] = predictions(self.metric, ensemble)
        return self._answers[weights]

    def alone(self, depth: int, weights: Floats | None = None) -> float:
        """Return the score of one level's own answers.

        Args:
            depth: Position of the level in the chain.
            weights: Weights of the queries, [n]; None weighs all equally.
        """
        return score(self.metric, self._own[depth], self.truth, weights)

    def score(self, reach: Floats, weights: Sequence[Weights], counts: Floats | None = None) -> float:
        """Return the expected score.

        Args:
            reach: Probability that each query runs each level, from `reach`.
            weights: Weights of the ensemble, one entry for each number of levels that have run.
            counts: Number of times that each query counts, [n]; None: all once.
        """
        answered = answering(reach) if counts is None else answering(reach) * counts
        answers = np.concatenate([self.answers(each) for each in weights])
        return score(self.metric, answers, np.tile(self.truth, self.depth), answered.ravel())

    def right(self, reach: Floats, weights: Sequence[Weights]) -> Floats:
        """Return the probability that each query of a classification is answered right, [n].

        Args:
            reach: Probability that each query runs each level, from `reach`.
            weights: Weights of the ensemble, one entry for each number of levels that have run.
        """
        answers = np.stack([self.answers(each) for each in weights])
        return np.asarray((answering(reach) * (answers == self.truth)).sum(axis=0), np.float64)

    def expected(self, reach: Floats, weights: Sequence[Weights]) -> Expected:
        """Return the expectation over the draws of score, latency, levels that answer, and pruned words.

        Args:
            reach: Probability that each query runs each level, from `reach`.
            weights: Weights of the ensemble, one entry for each number of levels that have run.
        """
        answered = answering(reach)
        returned = answered.mean(axis=1)
        return Expected(
            score=self.score(reach, weights),
            latency=latency(self._sorted_ms, answered.ravel()[self._by_latency]),
            returned=tuple((returned / returned.sum()).tolist()),
            pruned=self.pruned(reach[1:]),
        )

    def pruned(self, re_routed: Floats) -> float:
        """Return the share of the words that pruning removed from re-routed queries.

        Args:
            re_routed: Probability that each query runs the second and each further level, [levels - 1, n].
        """
        total = float((re_routed * self._words).sum())
        return float((re_routed * self._removed).sum()) / total if total else 0.0


def answering(reach: Floats) -> Floats:
    """Return the probability that each level gives each query's answer, [levels, n].

    Args:
        reach: Probability that each query runs each level, [levels, n].
    """
    return np.asarray(reach - np.concatenate([reach[1:], np.zeros_like(reach[:1])]), np.float64)


def predictions(metric: Metric, votes: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.generic]:
    """Return the most likely labels, or a regression's values, [n].

    Args:
        metric: Metric of the task; "accuracy" means a classification.
        votes: Probabilities or logits [n, classes]; for a regression its values [n, 1].
    """
    return votes.argmax(axis=1) if metric == "accuracy" else votes[:, 0]


def score(
    metric: Metric, answers: npt.NDArray[np.generic], truth: npt.NDArray[np.generic], weights: Floats | None = None
) -> float:
    """Return the metric over weighted answers; larger is better.

    With the probabilities of a random route's answers as weights, accuracy and r2 are the exact expectation over the
    draws. The correlations are those of the mixture of all routes, which differ from the expectation by less than
    the spread of the draws.

    Args:
        metric: Metric to compute.
        answers: Indices of labels, or values, [m].
        truth: Correct labels or values, [m].
        weights: Weights of the answers, not negative and not all 0, [m]; None weighs all equally.

    Returns:
        The score; 0 for a correlation or r2 of values that do not vary.
    """
    shares = np.full(len(answers), 1 / len(answers)) if weights is None else weights / weights.sum()
    if metric == "accuracy":
        # Both sums in the same way: if all answers are right the result is exactly 1, which meets a target of 1.
        return float(shares[answers == truth].sum() / shares.sum())
    values, wanted = answers.astype(np.float64), truth.astype(np.float64)
    present = shares > 0
    # Not by their deviation, which rounding keeps from being exactly 0.
    constant = [np.ptp(each[present]) == 0 for each in (values, wanted)]
    if constant[1] or (constant[0] and metric != "r2"):
        return 0.0
    if metric == "spearman":
        values, wanted = _ranks(values, shares), _ranks(wanted, shares)
    off = wanted - shares @ wanted
    spread = float(shares @ off**2)
    if metric == "r2":
        return 1 - float(shares @ (wanted - values) ** 2) / spread if spread > 0 else 0.0
    around = values - shares @ values
    scale = np.sqrt(spread * float(shares @ around**2))
    return float(shares @ (off * around) / scale) if scale > 0 else 0.0


def latency(sorted_ms: Floats, weights: Floats) -> Latency:
    """Return mean and percentiles of weighted latencies.

    A percentile is the smallest latency at which that share of the weight is reached.

    Args:
        sorted_ms: Latencies in milliseconds, ascending, [m].
        weights: Weight of each, [m].
    """
    until = np.cumsum(weights)
    # Sums of probabilities miss the exact share by rounding.
    wanted = np.array([0.25, 0.5, 0.75, 0.99]) * until[-1] * (1 - 1e-12)
    p25, p50, p75, p99 = sorted_ms[np.searchsorted(until, wanted)].tolist()
    return Latency(mean=float(sorted_ms @ weights / until[-1]), p25=p25, p50=p50, p75=p75, p99=p99)


def _ranks(values: Floats, shares: Floats) -> Floats:
    """Return, for each value, the weight below it plus half of the weight equal to it."""
    _, group = np.unique(values, return_inverse=True)
    weight = np.bincount(group, weights=shares)
    return (np.cumsum(weight) - weight / 2)[group]
