"""Costs and expected utilities by γ as arrays, which planning reads faster than the profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.otas.policies.types import CostProfile, Query

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Latencies of batches by γ.

    Attributes:
        gammas: List L of γ, ascending.
        seconds: Seconds by γ and number of queries, of shape [gammas, max_batch + 1]; column 0 is 0, and values are
            infinite where the memory limit does not allow the batch (Eq. 1c).
        sample_s: Seconds per query in the largest allowed batch, of shape [gammas]: the sample-level latency of §III-D.
    """

    gammas: tuple[int, ...]
    seconds: FloatArray
    sample_s: FloatArray

    @classmethod
    def of(cls, profile: CostProfile, memory_bytes: int | None = None) -> Costs:
        """Compute the costs of all allowed batches.

        Args:
            profile: Measured costs and accuracies.
            memory_bytes: Memory limit of a batch (M_GPU), in bytes; None for no limit.

        Raises:
            InvalidArgument: The limit does not allow one query at every γ.
        """
        sizes = range(1, profile.max_batch + 1)
        seconds = np.zeros((len(profile.gammas), profile.max_batch + 1))
        for gamma_index, gamma in enumerate(profile.gammas):
            seconds[gamma_index, 1:] = [profile.latency_s(gamma, size) for size in sizes]
            if memory_bytes is not None:
                takes = np.array([profile.memory_bytes(gamma, size) for size in sizes])
                seconds[gamma_index, 1:][takes > memory_bytes] = np.inf
        largest = np.isfinite(seconds).sum(axis=1) - 1
        if not largest.all():
            gamma = profile.gammas[int(np.argmin(largest))]
            raise InvalidArgument(
                f"{memory_bytes} bytes of memory do not allow one query at γ {gamma}, which takes "
                f"{profile.memory_bytes(gamma, 1)}"
            )
        return cls(profile.gammas, seconds, seconds[np.arange(len(largest)), largest] / largest)

    def slowed(self, factor: float) -> Costs:
        """Return the costs with all latencies multiplied by a factor."""
        return Costs(self.gammas, self.seconds * factor, self.sample_s * factor)

    @property
    def max_batch(self) -> int:
        """Maximum number of queries in a batch of any γ."""
        return self.seconds.shape[1] - 1

    @property
    def alone_s(self) -> float:
        """Seconds of the fastest batch of one query."""
        return float(self.seconds[:, 1].min())


def earnings(profile: CostProfile, query: Query) -> FloatArray:
    """Return a query's expected utility by γ, of shape [gammas]: its utility times the accuracy.

    Args:
        profile: Measured costs and accuracies.
        query: The query.

    Raises:
        TidalError: The profile has no accuracy of the query's task; see `CostProfile.accuracy`.
    """
    return query.utility * np.array([profile.accuracy(query.task, gamma) for gamma in profile.gammas])
