"""One γ for all batches, as in servers without token adaptation: PetS (0), ToMe (below 0) or VPT (above 0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tidal.errors import InvalidArgument
from tidal.otas.policies.base import GroupedPolicy
from tidal.otas.policies.groups import Batching, Group
from tidal.otas.policies.types import CostProfile, Query


class FixedPolicy(GroupedPolicy):
    """Runs batches of Algorithm 1, earliest deadline first.

    Args:
        profile: Measured costs and accuracies.
        gamma: The γ of all batches, one of the profile's.
        memory_bytes: Memory limit of a batch, in bytes; None for no limit.

    Raises:
        InvalidArgument: The profile does not have γ.
    """

    def __init__(self, profile: CostProfile, gamma: int, *, memory_bytes: int | None = None) -> None:
        super().__init__(profile, memory_bytes=memory_bytes)
        if gamma not in self._costs.gammas:
            raise InvalidArgument(f"gamma is {gamma}; accepted are {', '.join(map(str, self._costs.gammas))}")
        self._place = self._costs.gammas.index(gamma)
        usual = Batching()
        largest = int(np.isfinite(self._costs.seconds[self._place]).sum()) - 1
        self._batching = replace(usual, size=min(usual.size, largest))

    def _group_for(self, query: Query) -> Group | None:
        return self._batching.group_for(query, self._groups)

    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        return min(self._groups, key=lambda group: group.deadline).queries, self._place
