"""What a combination of levels does on labelled queries at any cut-off, without running anything again.

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
from tidal.tabi.manifest import Calibration, Expected, Metric
from tidal_builders.tabi.metrics import Floats, latency, score
from tidal_builders.tabi.outputs import LevelOutputs

Weights = tuple[float, ...]


class Chain:
    """A combination of levels, each run on every query: what any cut-off, slope and weights make of it is read off.

    Args:
        outputs: of each level in its turn, on the n queries as it reads them (pruned, from the second on).
        calibrations: of the same levels.
        truth: [n].
        words: how many words each query has, [n].
        removed: how many of them pruning has removed before the second level and each further one, [levels - 1, n].
        metric: measures the answers.
        added_ms: what serving adds to the time of each level's engine; None: nothing.
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
        # What the ensemble averages (Eq. 6): probabilities at T = 1, or a regression's values.
        self._votes = [softmax(each.logits) if metric == "accuracy" else each.logits for each in outputs]
        self._own = [read(metric, votes) for votes in self._votes]
        self._confidences = [
            confidence(calibration, each.logits)
            for calibration, each in zip(calibrations[:-1], outputs[:-1], strict=True)
        ]
        added = [0.0] * self.depth if added_ms is None else added_ms
        times = [each.latency_ms + ms for each, ms in zip(outputs, added, strict=True)]
        elapsed = np.cumsum(times, axis=0).ravel()
        self._by_latency = np.argsort(elapsed, kind="stable")
        self._sorted_ms = elapsed[self._by_latency]
        self._answers: dict[Weights, npt.NDArray[np.generic]] = {}

    def reach(self, cutoff: float | None, slope: float | None) -> Floats:
        """Probability that each query runs each level, [levels, n]; a single level has no cut-off."""
        if cutoff is None or slope is None:
            assert self.depth == 1
            return np.ones((1, len(self.truth)))
        escalations = [np.asarray(reroute_probability(each, cutoff, slope)) for each in self._confidences]
        return np.cumprod([np.ones(len(self.truth)), *escalations], axis=0)

    def answers(self, weights: Weights) -> npt.NDArray[np.generic]:
        """Labels or values that the first `len(weights)` levels give together, [n]."""
        if weights not in self._answers:
            together = combine(weights, self._votes[: len(weights)])
            self._answers[weights] = read(self.metric, together)
        return self._answers[weights]

    def alone(self, depth: int, weights: Floats | None = None) -> float:
        """Score of one level's own answers, [n] `weights` of queries or all alike."""
        return score(self.metric, self._own[depth], self.truth, weights)

    def expected(self, reach: Floats, weights: Sequence[Weights]) -> Expected:
        """Expectation over the draws of score, latency, levels that answer, and words pruned.

        Args:
            reach: of `reach`.
            weights: of the ensemble, an entry for each number of levels that have run.
        """
        answered = answering(reach)
        answers = np.concatenate([self.answers(each) for each in weights])
        re_routed = reach[1:]
        total = float((re_routed * self._words).sum())
        returned = answered.mean(axis=1)
        return Expected(
            score=score(self.metric, answers, np.tile(self.truth, self.depth), answered.ravel()),
            latency=latency(self._sorted_ms, answered.ravel()[self._by_latency]),
            returned=tuple((returned / returned.sum()).tolist()),
            pruned=float((re_routed * self._removed).sum()) / total if total else 0.0,
        )


def answering(reach: Floats) -> Floats:
    """Probability that each level gives each query's answer, from the probability that it runs; [levels, n]."""
    return np.asarray(reach - np.concatenate([reach[1:], np.zeros_like(reach[:1])]), np.float64)


def read(metric: Metric, votes: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.generic]:
    """The labels that have most of the votes, or a regression's values, [n]."""
    return votes.argmax(axis=1) if metric == "accuracy" else votes[:, 0]
