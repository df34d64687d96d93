"""The early router beside Tabi's confidence, at equal accuracy: from outputs and engine times of this run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.report import Report
from benchmarks.tabi.offline import tokens_and_outputs
from benchmarks.tabi.tasks import TaskQueries
from testing.cascades import OpenLevel
from tidal.serving.softmax import softmax
from tidal.tabi.equations import combine, confidence, reroute_probability
from tidal.tabi.manifest import Candidate, TabiManifest
from tidal_builders.tabi.early import fit_router

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoutedShare:
    """One way to choose between two levels.

    Attributes:
        name: Name of the way.
        accuracy: Share of right answers.
        escalated: Share of the queries that the last level reads.
        skipped: Share of the queries that only the last level reads.
        mean_ms: Mean engine time of a query, with the router's, milliseconds.
    """

    name: str
    accuracy: float
    escalated: float
    skipped: float
    mean_ms: float


@dataclass(frozen=True, slots=True)
class RoutedQueries:
    """Both levels' results on the same queries, from which every way can be computed.

    Attributes:
        difficulty: Estimate of the early router, [n].
        rerouted: Probability that Eq. 4 re-routes a query, [n].
        small_right, large_right, both_right: Whether the small level, the large one and the ensemble are right, [n].
        small_ms, large_ms: Times of the engines, [n].
        router_ms: Time of the early router.
    """

    difficulty: Floats
    rerouted: Floats
    small_right: Floats
    large_right: Floats
    both_right: Floats
    small_ms: Floats
    large_ms: Floats
    router_ms: float

    def routed(self, name: str, threshold: float | None, *, dispatcher: bool) -> RoutedShare:
        """Return one way: queries above the threshold skip the small level; Eq. 4 may re-route the others.

        Args:
            name: Name of the way.
            threshold: Difficulty above which a query skips the small level; None: there is no early router.
            dispatcher: Whether Eq. 4 re-routes queries that the small level has answered.
        """
        skips = (
            np.zeros(len(self.difficulty)) if threshold is None else (self.difficulty > threshold).astype(np.float64)
        )
        onward = (1 - skips) * (self.rerouted if dispatcher else 0.0)
        early = 1 - skips - onward
        right = early * self.small_right + onward * self.both_right + skips * self.large_right
        ms = (1 - skips) * self.small_ms + (onward + skips) * self.large_ms
        router_ms = 0.0 if threshold is None else self.router_ms
        return RoutedShare(
            name,
            float(right.mean()),
            float((onward + skips).mean()),
            float(skips.mean()),
            float(ms.mean()) + router_ms,
        )

    def compared(self) -> list[RoutedShare]:
        """Return Tabi's dispatcher, and the ways with an early router that cost least at its accuracy.

        The thresholds of the latter are those that are best on these queries, which favours the early router.
        """
        tabi = self.routed("Tabi's confidence", None, dispatcher=True)
        thresholds = [-1.0, *np.unique(self.difficulty).tolist()]
        found = [tabi]
        for name, dispatcher in (("early router alone", False), ("early router, then Tabi's confidence", True)):
            ways = [self.routed(name, each, dispatcher=dispatcher) for each in thresholds]
            enough = [each for each in ways if each.accuracy >= tabi.accuracy - 1e-9]
            if enough:
                found.append(min(enough, key=lambda each: each.mean_ms))
        return found


def add_comparison(report: Report, found: Mapping[str, Sequence[RoutedShare]]) -> None:
    """Report the ways by task.

    Args:
        report: Report to extend.
        found: Ways by task.
    """
    rows = [
        [
            task,
            each.name,
            f"{each.accuracy:.2%}",
            f"{each.escalated:.1%}",
            f"{each.skipped:.1%}",
            f"{each.mean_ms:.2f}",
            f"{each.mean_ms / ways[0].mean_ms:.2f}",
        ]
        for task, ways in found.items()
        for each in ways
    ]
    columns = ["task", "chosen by", "accuracy", "large level", "of these at once", "mean ms", "/ Tabi"]
    report.add_table("early router at the accuracy of Tabi's confidence, engines alone, no pruning", columns, rows)


def collect_routes(
    manifest: TabiManifest, two: Candidate, levels: Sequence[OpenLevel], known: TaskQueries, queries: TaskQueries
) -> RoutedQueries:
    """Fit an early router on queries that its comparison does not use, and run both levels on the others.

    Texts are not pruned, in any of the ways.

    Args:
        manifest: Manifest of the cascade.
        two: Candidate of two levels.
        levels: Opened levels in the manifest's order.
        known: Queries to fit the router on.
        queries: Queries to compare on.
    """
    first, last = two.levels
    calibration = manifest.levels[first].calibration
    _, seen = tokens_and_outputs(levels[first], known)
    router = fit_router(known.texts, 1 - confidence(calibration, seen.logits))[0].router
    _, small = tokens_and_outputs(levels[first], queries)
    _, large = tokens_and_outputs(levels[last], queries)
    truth = np.array([manifest.labels.index(label) for label in queries.truth])
    votes = [softmax(each.logits) for each in (small, large)]
    small_right, large_right, both_right = (
        (each.argmax(axis=1) == truth).astype(np.float64) for each in (*votes, combine(two.weights[-1], votes))
    )
    begin = time.perf_counter()
    difficulty = np.array([router.difficulty([text.encode() for text in texts]) for texts in queries.texts])
    router_ms = (time.perf_counter() - begin) * 1e3 / len(queries)
    assert two.cutoff is not None
    rerouted = np.asarray(reroute_probability(confidence(calibration, small.logits), two.cutoff, two.slope or 1.0))
    return RoutedQueries(
        difficulty, rerouted, small_right, large_right, both_right, small.latency_ms, large.latency_ms, router_ms
    )
