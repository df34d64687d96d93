"""What all candidates of a search have in common: calibrated levels in order, and the runs of their combinations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidal.tabi.manifest import Candidate, Latency, Metric, ServingOverhead
from tidal_builders.tabi.calibrate import calibrate
from tidal_builders.tabi.evaluate import Chain, read
from tidal_builders.tabi.metrics import latency, score
from tidal_builders.tabi.outputs import REPORT, SELECTION, Data, LevelFacts, Rerun
from tidal_builders.tabi.passes import Indices, Pass, Passes
from tidal_builders.tabi.thinning import Found


class Bench:
    """Levels ascending by score, and what combinations of them do. Levels go by their place in that order.

    Args:
        data: labelled queries.
        levels: in any order, with their outputs on all queries.
        rerun: runs one of `levels` on pruned queries.
        metric: measures the answers.
        tolerance: see `calibrate`.
        serving: what serving adds to the engines' time; None leaves it out.

    Attributes:
        order: index in `levels` of each place.
        calibrated: of each place.
    """

    def __init__(
        self,
        data: Data,
        levels: Sequence[LevelFacts],
        rerun: Rerun,
        *,
        metric: Metric,
        tolerance: float | None,
        serving: ServingOverhead | None = None,
    ) -> None:
        self._data, self._metric, self._serving = data, metric, serving
        order = ascending(data, levels, metric)
        self.order = tuple(order)
        self.names = tuple(levels[index].name for index in order)
        self.calibrated = tuple(calibrate(levels[index].outputs.logits, data, tolerance) for index in order)
        self._passes = Passes(
            data.texts, [levels[index] for index in order], lambda level, texts: rerun(order[level], texts)
        )

    def prunes(self, levels: tuple[int, ...]) -> bool:
        """Whether the levels of a combination say which words matter."""
        return self._passes.prunes(levels)

    def rows(self, *parts: int) -> Indices:
        """The queries of some parts, ascending."""
        return np.flatnonzero(np.isin(self._data.part, parts))

    def run(self, levels: tuple[int, ...], pruning: float | None, rows: Indices) -> Pass:
        """The levels in turn on some queries; see `Passes.run`."""
        return self._passes.run(levels, pruning, rows)

    def chain(self, levels: tuple[int, ...], pruning: float | None, run: Pass, rows: Indices) -> Chain:
        """What can be read off a run with this pruning on these queries."""
        added_ms = None
        if self._serving is not None:
            added_ms = self._serving.added([self.names[level] for level in levels], pruned=pruning is not None)
        return Chain(
            run.outputs,
            [self.calibrated[level].calibration for level in levels],
            self._data.truth[rows],
            words=run.words,
            removed=run.removed,
            metric=self._metric,
            added_ms=added_ms,
        )

    def engine_latency(self, level: int) -> Latency:
        """A level's own time on the queries of the report part, without what serving adds."""
        times = np.sort(self._passes.alone(level).latency_ms[self.rows(REPORT)])
        return latency(times, np.ones(len(times)))

    def single(self, level: int) -> Found:
        """A level alone."""
        rows, weights = self.rows(SELECTION), ((1.0,),)
        chain = self.chain((level,), None, self.run((level,), None, rows), rows)
        return Found((level,), None, None, None, None, weights, chain.expected(chain.reach(None, None), weights))

    def reported(self, found: Sequence[Found]) -> list[Candidate]:
        """Candidates that differ in no level or pruning, with what they do on the report part."""
        levels, pruning, rows = found[0].levels, found[0].pruning, self.rows(REPORT)
        chain = self.chain(levels, pruning, self.run(levels, pruning, rows), rows)
        return [
            Candidate(
                name=self._name(each),
                levels=levels,
                cutoff=each.cutoff,
                slope=each.slope,
                pruning=each.pruning,
                weights=each.weights,
                weighting=each.weighting,
                selection=each.selection,
                reported=chain.expected(chain.reach(each.cutoff, each.slope), each.weights),
            )
            for each in found
        ]

    def _name(self, found: Found) -> str:
        """Such as `small+large c=0.9 k=10 alpha=0.7 tuned`."""
        parts = ["+".join(self.names[level] for level in found.levels)]
        if found.cutoff is not None:
            parts += [f"c={found.cutoff:g}", f"k={found.slope:g}"]
        if found.pruning is not None:
            parts.append(f"alpha={found.pruning:g}")
        return " ".join([*parts, *([found.weighting] if found.weighting else [])])


def ascending(data: Data, levels: Sequence[LevelFacts], metric: Metric) -> list[int]:
    """Indices of the levels by score on all but the report part; of equally good ones the faster goes first."""
    known = data.part != REPORT

    def rank(index: int) -> tuple[float, float]:
        outputs = levels[index].outputs
        answers = read(metric, outputs.logits[known])
        return score(metric, answers, data.truth[known]), float(outputs.latency_ms[known].mean())

    return sorted(range(len(levels)), key=rank)
