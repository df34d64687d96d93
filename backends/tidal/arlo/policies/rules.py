"""Rules that choose the runtime whose least loaded instance gets an arriving query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tidal.arlo.policies.algorithm_1 import choose_level
from tidal.arlo.policies.levels import RuntimeLevel


class DispatchRule(Protocol):
    """Chooses one of the runtimes that a query fits."""

    @property
    def divides(self) -> bool:
        """Whether the instances that are assigned to other entrances may be candidates of their own."""

    def choose(self, candidates: Sequence[RuntimeLevel], share: float) -> RuntimeLevel:
        """Return the level whose head gets the query.

        Args:
            candidates: Levels that fit the query, ascending by `max_length`, each with instances. Where instances are
                divided, a runtime has two: the instances that are assigned to this entrance, then the others.
            share: Share of the instances' queries that this policy dispatches: loads are those of its own queries.
        """


@dataclass(frozen=True, slots=True)
class CongestionRule:
    """The first runtime whose least loaded instance is below a threshold (Arlo, Algorithm 1).

    Attributes:
        threshold: Congestion below which the first candidate is selected (λ).
        decay: Factor on the threshold for each longer runtime (α).
        peek: Number of candidates that are considered (L).
    """

    threshold: float = 0.85
    decay: float = 0.9
    peek: int = 6
    divides: ClassVar[bool] = False

    def choose(self, candidates: Sequence[RuntimeLevel], share: float) -> RuntimeLevel:
        """See `DispatchRule`."""
        level, threshold = candidates[0], self.threshold * share
        if level.head().load / level.capacity < threshold:  # the common case, checked first
            return level
        return choose_level(candidates[: self.peek], threshold, self.decay)  # lines 3 to 5


@dataclass(frozen=True, slots=True)
class CompletionRule:
    """The runtime whose least loaded instance is expected to answer first: minimum completion time.

    An instance runs its queries one after another, each in the runtime's time, so it answers the next one after its
    outstanding ones and that query itself. Where two are equally fast, the shorter runtime gets it.
    """

    divides: ClassVar[bool] = True

    def choose(self, candidates: Sequence[RuntimeLevel], share: float) -> RuntimeLevel:
        """See `DispatchRule`."""
        chosen, least = candidates[0], math.inf
        for level in candidates:
            if level.seconds >= least:  # even if it idles
                continue
            seconds = (level.expected_load(share) + 1.0) * level.seconds
            if seconds < least:
                chosen, least = level, seconds
        return chosen
