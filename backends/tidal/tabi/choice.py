"""Which candidate serves a request: the one selected for the target, another on demand, a faster one under overload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, TabiManifest, Target
from tidal.tabi.selection import faster, select

# Time constant of the moving average of the excess latency, which decays by it when no query arrives.
_SMOOTHING_S = 1.0
# Queries without any excess that are always counted in: a few slow ones are not an overload.
_PRIOR_QUERIES = 10
# Time after a change of the candidate before the next one, so that its effect is observed.
_COOLDOWN_S = 2.0
# The slower candidate returns when the excess has been below half of the limit for this long.
_CALM_S = 10.0


class CandidateChoice:
    """Online selection among saved candidates (Tabi §5), when the model loads and for each request.

    Candidates that use only levels of the one that serves are usable too: no further model has to be loaded.

    Args:
        manifest: Manifest of the cascade being served.
        target: Target that replaces the one the cascade was built for; None keeps that.

    Raises:
        InvalidArgument: No candidate meets the target; the message names the closest one.
    """

    def __init__(self, manifest: TabiManifest, target: Target | None) -> None:
        self._candidates = manifest.candidates
        self._levels = len(manifest.levels)
        self.default = manifest.chosen if target is None else select(manifest.candidates, target)
        """Index of the candidate that serves."""
        self.levels = manifest.candidates[self.default].levels
        """Indices of the levels that have to be loaded, ascending."""
        self.usable = tuple(
            index for index, each in enumerate(manifest.candidates) if set(each.levels) <= set(self.levels)
        )
        """Indices of the candidates that can serve with these levels."""
        # Clients use few different options: each combination is computed once.
        self._select = lru_cache(maxsize=256)(self._best)

    def for_request(self, accuracy: float | None, max_level: int | None, serving: int) -> int:
        """Return the index of the candidate for one request.

        Args:
            accuracy: Minimum score that the client requests; None accepts the candidate that serves.
            max_level: Number of the last level that may run, from 1; None allows all.
            serving: Index of the candidate that serves now.

        Returns:
            The fastest candidate that reaches the accuracy, or the most accurate one if none does; a cascade that
            goes beyond `max_level` ends before it. If that candidate starts beyond `max_level`: the most accurate of
            those that do not.

        Raises:
            InvalidArgument: Every candidate starts beyond `max_level`.
        """
        index = serving if accuracy is None else self._select(accuracy, self._levels)
        if max_level is not None and self._candidates[index].levels[0] >= max_level:
            index = self._select(accuracy, max_level)
        return index

    def ladder(self, least_score: float) -> tuple[int, ...]:
        """Return the candidate that serves, followed by those for rising overload, each faster than the one before.

        Args:
            least_score: Minimum score of all candidates but the first.
        """
        rungs = [self.default]
        while (rung := faster(self._candidates, rungs[-1], least_score)) is not None:
            rungs.append(rung)
        return tuple(rungs)

    def _best(self, accuracy: float | None, max_level: int) -> int:
        """Return the best usable candidate that starts at a level up to `max_level`."""
        choices = [index for index in self.usable if self._candidates[index].levels[0] < max_level]
        if not choices:
            first = min(self._candidates[index].levels[0] for index in self.usable) + 1
            raise InvalidArgument(
                f"request option 'max_level' is {max_level}, but the cascade that serves begins at level {first}"
            )
        among: list[Candidate] = [self._candidates[index] for index in choices]
        if accuracy is not None:
            try:
                return choices[select(among, Target(accuracy=accuracy))]
            except InvalidArgument:
                pass  # none reaches it: the most accurate one is the closest
        return max(choices, key=lambda index: (self._candidates[index].selection.score, -self._latency(index)))

    def _latency(self, index: int) -> float:
        return self._candidates[index].selection.latency.mean


def single_level(candidate: Candidate, level: int) -> Candidate:
    """Return one of a candidate's levels as a single model, for queries whose first level failed.

    Args:
        candidate: Candidate that contains the level.
        level: Index of the level among the manifest's levels.
    """
    single = {"levels": (level,), "weights": ((1.0,),), "weighting": None}
    return candidate.model_copy(update={**single, "cutoff": None, "slope": None, "pruning": None, "early": None})


class OverloadControl:
    """Selects a faster candidate while queries wait too long, and a slower one again when they no longer do.

    Args:
        ladder: Indices of candidates: the one that serves without overload, then ever faster ones.
        limit_ms: Accepted waiting time of queries, in milliseconds beyond what their levels take alone.
    """

    def __init__(self, ladder: Sequence[int], limit_ms: float) -> None:
        self._ladder = tuple(ladder)
        self._limit_ms = limit_ms
        # Sum and count of recent queries, weighted by their age.
        self._sum_ms = 0.0
        self._count = 0.0
        self._observed = -math.inf
        self._rung = 0
        self._changed = -math.inf
        self._calm_since: float | None = None

    def observe(self, now: float, excess_ms: float) -> None:
        """Record how much longer than expected a level took, from when the query was ready for it.

        Args:
            now: Current time, seconds.
            excess_ms: Excess latency, milliseconds; a negative value counts as 0.
        """
        weight = self._weight(now)
        self._sum_ms = self._sum_ms * weight + max(excess_ms, 0.0)
        self._count = self._count * weight + 1
        self._observed = max(now, self._observed)

    def excess_ms(self, now: float) -> float:
        """Return the moving average of the excess latency, milliseconds.

        Args:
            now: Current time, seconds.
        """
        weight = self._weight(now)
        return self._sum_ms * weight / (self._count * weight + _PRIOR_QUERIES)

    def candidate(self, now: float) -> int:
        """Return the index of the candidate that serves now.

        Args:
            now: Current time, seconds.
        """
        excess_ms = self.excess_ms(now)
        if excess_ms >= self._limit_ms / 2:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        if now - self._changed >= _COOLDOWN_S:
            if excess_ms > self._limit_ms and self._rung + 1 < len(self._ladder):
                self._rung, self._changed = self._rung + 1, now
            elif self._rung and self._calm_since is not None and now - self._calm_since >= _CALM_S:
                self._rung, self._changed = self._rung - 1, now
                self._calm_since = now  # the next change back waits as long
        return self._ladder[self._rung]

    def _weight(self, now: float) -> float:
        """Return the factor by which past observations have decayed."""
        return math.exp(-max(now - self._observed, 0.0) / _SMOOTHING_S)
