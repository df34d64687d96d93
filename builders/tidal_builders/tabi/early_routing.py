"""Evaluates cascades of two levels whose difficult queries skip the first one, as the early router estimates it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tidal.tabi.equations import confidence
from tidal.tabi.manifest import Candidate, Expected
from tidal_builders.tabi.combinations import CombinationEvaluator
from tidal_builders.tabi.data import CALIBRATION, REPORT, SELECTION, CollectedLevel, LabelledData
from tidal_builders.tabi.early import FittedRouter, fit_router
from tidal_builders.tabi.evaluate import Floats, answering, latency
from tidal_builders.tabi.pareto import Configuration

# Shares of the calibration part's queries that skip the first level.
SKIPPED = (0.05, 0.1, 0.2, 0.3, 0.5)
_ALONE = ((1.0,),)


@dataclass(frozen=True, slots=True)
class LevelRouter:
    """The early router of a level, identified by its position among the manifest's levels."""

    level: int
    fitted: FittedRouter


@dataclass(frozen=True, slots=True)
class _Estimates:
    """A level's router with the estimated difficulty of all queries, [n], and the time of an estimate."""

    fitted: FittedRouter
    difficulties: Floats
    took_ms: float


class EarlyRouting:
    """Fits early routers on the calibration part, and evaluates configurations with them.

    Estimates for the calibration part are by routers that were fitted without the query.

    Args:
        evaluator: Evaluator of a classification's combinations.
        data: Queries that it evaluates on.
        levels: Levels that the evaluator was made with.
    """

    def __init__(self, evaluator: CombinationEvaluator, data: LabelledData, levels: Sequence[CollectedLevel]) -> None:
        self._evaluator, self._data = evaluator, data
        self._logits = [levels[index].outputs.logits for index in evaluator.order]
        self._estimates: dict[int, _Estimates] = {}

    def routers(self, candidates: Sequence[Candidate]) -> tuple[LevelRouter, ...]:
        """Return the routers that candidates use, by level.

        Args:
            candidates: Candidates of the search.
        """
        levels = sorted({each.levels[0] for each in candidates if each.early is not None})
        return tuple(LevelRouter(level, self._of(level).fitted) for level in levels)

    def variants(self, configuration: Configuration) -> list[Configuration]:
        """Return a configuration of two levels with early routing of several shares of the queries.

        Args:
            configuration: Configuration without early routing.
        """
        estimates = self._of(configuration.levels[0]).difficulties[self._data.part == CALIBRATION]
        thresholds = np.unique(np.clip(np.quantile(estimates, 1 - np.array(SKIPPED)), 0, 1).round(4))
        found = []
        for threshold in thresholds[::-1].tolist():
            one = replace(configuration, early=threshold)
            score = float(self.right(one, CALIBRATION).mean())
            found.append(replace(one, selection=self.expected(one, SELECTION), search_score=score))
        return found

    def right(self, configuration: Configuration, part: int) -> Floats:
        """Return the probability that each query is answered right, [n].

        Args:
            configuration: Configuration, with or without early routing.
            part: Part of the data.
        """
        chain = self._evaluator.chain_of(configuration.levels, configuration.pruning, part)
        right = chain.right(chain.reach(configuration.cutoff, configuration.slope), configuration.weights)
        if configuration.early is None:
            return right
        direct = self._evaluator.chain_of(configuration.levels[-1:], None, part)
        return np.where(self._skips(configuration, part), direct.right(direct.reach(None, None), _ALONE), right)

    def expected(self, configuration: Configuration, part: int) -> Expected:
        """Return the figures of a configuration with early routing; its latency includes the router's time.

        Args:
            configuration: Configuration with early routing.
            part: Part of the data.
        """
        chain = self._evaluator.chain_of(configuration.levels, configuration.pruning, part)
        direct = self._evaluator.chain_of(configuration.levels[-1:], None, part)
        skips = self._skips(configuration, part)
        reach = chain.reach(configuration.cutoff, configuration.slope) * ~skips
        answered = np.concatenate([answering(reach), skips[None]])
        times = np.concatenate([chain.elapsed_ms, direct.elapsed_ms]) + self._of(configuration.levels[0]).took_ms
        order = np.argsort(times.ravel(), kind="stable")
        first = float(answered[0].mean())
        return Expected(
            score=float(self.right(configuration, part).mean()),
            latency=latency(times.ravel()[order], answered.ravel()[order]),
            returned=(first, 1 - first),
            pruned=chain.pruned(reach[1:]),
        )

    def reported(self, configuration: Configuration, candidate: Candidate) -> Candidate:
        """Return the candidate of a configuration with early routing.

        Args:
            configuration: Configuration with early routing.
            candidate: Candidate of the same configuration without it.
        """
        name = f"{candidate.name} early={configuration.early:g}"
        reported = self.expected(configuration, REPORT)
        return candidate.model_copy(update={"name": name, "early": configuration.early, "reported": reported})

    def _skips(self, configuration: Configuration, part: int) -> npt.NDArray[np.bool_]:
        assert configuration.early is not None
        estimates = self._of(configuration.levels[0]).difficulties
        return np.asarray(estimates[self._evaluator.rows(part)] > configuration.early)

    def _of(self, level: int) -> _Estimates:
        if level not in self._estimates:
            known = np.flatnonzero(self._data.part == CALIBRATION)
            sure = confidence(self._evaluator.calibrated[level].calibration, self._logits[level][known])
            fitted, held_out = fit_router([self._data.texts[row] for row in known.tolist()], 1 - sure)
            router = fitted.router
            start = time.perf_counter()
            estimates = np.array([router.difficulty([text.encode() for text in each]) for each in self._data.texts])
            took_ms = (time.perf_counter() - start) * 1e3 / len(estimates)
            estimates[known] = held_out
            self._estimates[level] = _Estimates(fitted, estimates, took_ms)
        return self._estimates[level]
