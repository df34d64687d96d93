"""Which of the saved candidates serve: the one that meets the target, and those that its levels can serve as well."""

from __future__ import annotations

from functools import lru_cache

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, TabiManifest, Target
from tidal.tabi.selection import faster, select


class Choice:
    """The online selection among saved candidates (Tabi §5), when the model loads and for each request.

    Candidates whose levels are all levels of the one that serves are usable as well: nothing more has to be loaded.

    Args:
        manifest: of the cascade.
        target: what to meet instead of what the cascade was built for; None keeps that.

    Raises:
        InvalidArgument: no candidate meets the target; says how close the best came.
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
        """Indices of the candidates that these levels can serve."""
        # A client's choice is one of few: each is worked out once.
        self._select = lru_cache(maxsize=256)(self._best)

    def for_request(self, accuracy: float | None, max_level: int | None, serving: int) -> int:
        """The candidate for one request.

        Args:
            accuracy: least score that the client asks for; None takes what serves.
            max_level: number of the last level that may run, from 1, or None.
            serving: index of the candidate that serves now.

        Returns:
            The fastest candidate that reaches the accuracy, else the most accurate one; a cascade that goes beyond
            `max_level` ends before it. Where that begins beyond it: the most accurate of those that do not.

        Raises:
            InvalidArgument: every candidate begins beyond `max_level`.
        """
        index = serving if accuracy is None else self._select(accuracy, self._levels)
        if max_level is not None and self._candidates[index].levels[0] >= max_level:
            index = self._select(accuracy, max_level)
        return index

    def ladder(self, least_score: float) -> tuple[int, ...]:
        """The candidate that serves and those to take under overload, one after the other, each faster than the last.

        Args:
            least_score: that all but the first keep.
        """
        steps = [self.default]
        while (step := faster(self._candidates, steps[-1], least_score)) is not None:
            steps.append(step)
        return tuple(steps)

    def _best(self, accuracy: float | None, max_level: int) -> int:
        """The best of the usable candidates that begin at a level up to `max_level`."""
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


def alone(candidate: Candidate, level: int) -> Candidate:
    """One of a candidate's levels as a single model, for queries whose first level failed."""
    single = {"levels": (level,), "weights": ((1.0,),), "weighting": None}
    return candidate.model_copy(update={**single, "cutoff": None, "slope": None, "pruning": None})
