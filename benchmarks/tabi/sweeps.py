"""Sweeps over parameters, from outputs and latencies of this run: Figures 8 and 9, and other dispatchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.tabi.offline import PrunedQueries, collect, prune, tokens_and_outputs
from benchmarks.tabi.tasks import TaskQueries
from testing.cascades import OpenLevel
from tidal.serving.softmax import softmax
from tidal.tabi.equations import confidence, reroute_probability
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal_builders.tabi.data import LevelOutputs
from tidal_builders.tabi.evaluate import LevelChain

Floats = npt.NDArray[np.float64]
CUTOFFS = tuple(round(0.05 + 0.1 * step, 2) for step in range(10))
SCALES = (None, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
QUICK_SCALES = (None, 0.5, 0.7, 0.9)
# Share of the words that the paper removes from SST-2, by α (§7.4).
PUBLISHED = {0.5: 0.038, 0.7: 0.142, 0.9: 0.625}


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting of a parameter: accuracy, mean latency in ms, share returned early, share of words pruned."""

    name: str
    accuracy: float
    mean_ms: float
    returned: float
    pruned: float


@dataclass(frozen=True, slots=True)
class PrunedWords:
    """Share of the words that a pruning scale removes: from the re-routed queries, and from all queries."""

    scale: float
    re_routed: float
    every: float


class Sweeps:
    """A cascade of two levels on labelled queries, run once at each pruning scale.

    Latencies are those of the levels' engines in this process, one query at a time, without the server's overhead.

    Args:
        manifest: Manifest of the cascade.
        two: Candidate of two levels.
        levels: Opened levels in the manifest's order.
        queries: Labelled queries.
    """

    def __init__(
        self, manifest: TabiManifest, two: Candidate, levels: Sequence[OpenLevel], queries: TaskQueries
    ) -> None:
        first, last = two.levels
        self._two = two
        self._calibrations = [manifest.levels[level].calibration for level in two.levels]
        self._truth = np.array([manifest.labels.index(label) for label in queries.truth])
        self._last = levels[last]
        self._tokens, self._small = tokens_and_outputs(levels[first], queries)
        self._confidence = confidence(self._calibrations[0], self._small.logits)
        self._runs: dict[float | None, tuple[PrunedQueries, LevelOutputs]] = {}

    def cutoffs(self) -> list[SweepPoint]:
        """Return accuracy and latency of the cascade by c (Figure 8)."""
        return [self._point(f"{cutoff:g}", self._sigmoid(cutoff)) for cutoff in CUTOFFS]

    def scales(self, scales: Sequence[float | None]) -> list[SweepPoint]:
        """Return accuracy and latency of the large level alone on the re-routed queries, by α (Figure 9).

        Args:
            scales: Values of α; None prunes nothing.
        """
        assert self._two.cutoff is not None
        rerouted = self._sigmoid(self._two.cutoff)
        share = rerouted / rerouted.sum()
        points = []
        for scale in scales:
            pruned, outputs = self._run(scale)
            right = outputs.logits.argmax(axis=1) == self._truth
            removed = float(share @ pruned.removed / (share @ pruned.words))
            name = "none" if scale is None else f"{scale:g}"
            early = 1 - float(rerouted.mean())
            points.append(SweepPoint(name, float(share @ right), float(share @ outputs.latency_ms), early, removed))
        return points

    def pruned_words(self) -> list[PrunedWords]:
        """Return the share of pruned words at the scales for which the paper publishes it."""
        assert self._two.cutoff is not None
        rerouted = self._sigmoid(self._two.cutoff)
        found = []
        for scale in PUBLISHED:
            pruned, _ = self._run(scale)
            every = float(pruned.removed.sum() / pruned.words.sum())
            found.append(PrunedWords(scale, float(rerouted @ pruned.removed / (rerouted @ pruned.words)), every))
        return found

    def dispatchers(self) -> list[SweepPoint]:
        """Compare Eq. 4 with a linear probability and a hard cut-off, at the same c and at the same early returns."""
        cutoff = self._two.cutoff
        assert cutoff is not None
        ours = self._sigmoid(cutoff)
        kinds = {"linear": self._linear, "hard cut-off": self._hard}
        points = [self._point("Eq. 4", ours)]
        points += [self._point(f"{name}, same c", kind(cutoff)) for name, kind in kinds.items()]
        points += [
            self._point(f"{name}, same early returns", kind(equal_share(kind, float(ours.mean()))))
            for name, kind in kinds.items()
        ]
        return points

    def ensemble_gain(self) -> tuple[float, float]:
        """Return the accuracy on re-routed queries: of the large level alone, and of the ensemble (§7.3.4)."""
        assert self._two.cutoff is not None
        rerouted = self._sigmoid(self._two.cutoff)
        share = rerouted / rerouted.sum()
        _, outputs = self._run(self._two.pruning)
        small, large = softmax(self._small.logits), softmax(outputs.logits)
        weights = self._two.weights[-1]
        both = weights[0] * small + weights[1] * large
        return float(share @ (large.argmax(axis=1) == self._truth)), float(share @ (both.argmax(axis=1) == self._truth))

    def engines_ratio(self) -> float:
        """Return the mean time of the cascade's engines divided by that of its last level alone on all queries."""
        assert self._two.cutoff is not None
        _, alone = self._run(None)
        return self._point("", self._sigmoid(self._two.cutoff)).mean_ms / float(alone.latency_ms.mean())

    def _point(self, name: str, rerouted: Floats) -> SweepPoint:
        pruned, outputs = self._run(self._two.pruning)
        chain = LevelChain(
            [self._small, outputs],
            self._calibrations,
            self._truth,
            words=pruned.words,
            removed=pruned.removed[None],
            metric="accuracy",
        )
        found = chain.expected(np.stack([np.ones(len(rerouted)), rerouted]), self._two.weights)
        return SweepPoint(name, found.score, found.latency.mean, found.returned[0], found.pruned)

    def _run(self, scale: float | None) -> tuple[PrunedQueries, LevelOutputs]:
        if scale not in self._runs:
            importance = self._small.importance
            assert scale is None or importance is not None
            pruned = prune(self._tokens, importance or [np.empty(0, np.float32)] * len(self._tokens), scale, self._last)
            self._runs[scale] = pruned, collect(self._last, pruned.queries)
        return self._runs[scale]

    def _sigmoid(self, cutoff: float) -> Floats:
        return np.asarray(reroute_probability(self._confidence, cutoff, self._two.slope or 1.0), np.float64)

    def _linear(self, cutoff: float) -> Floats:
        return linear_probability(self._confidence, cutoff)

    def _hard(self, cutoff: float) -> Floats:
        return np.asarray(self._confidence <= cutoff, np.float64)


def linear_probability(sure: Floats, cutoff: float) -> Floats:
    """Return the dashed line of the paper's Figure 6: from 1 at c to 0 at a confidence of 1.

    Args:
        sure: Confidences, [n].
        cutoff: Cut-off c.
    """
    return np.where(sure > cutoff, (1 - sure) / (1 - cutoff), 1.0)


def equal_share(rerouted: Callable[[float], Floats], wanted: float) -> float:
    """Return the cut-off whose share of re-routed queries is closest to a given one.

    Args:
        goes_on: Re-routing probability of each query, by cut-off.
        wanted: Share of the queries.
    """
    low, high = 0.0, 1.0 - 1e-9
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if float(rerouted(middle).mean()) < wanted else (low, middle)
    return high
