"""Seconds and earnings by γ as arrays, so that a plan looks them up without calling the profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.otas.policies.types import CostProfile, Query

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What batches take, by the place of γ in `gammas`.

    Attributes:
        gammas: the γ list L, ascending.
        seconds: [gammas, max_batch + 1] by place and number of queries; column 0 is 0, infinite where memory does not
            allow the batch (Eq. 1c).
        sample_s: [gammas] seconds a query in the largest batch that may be: the sample-level latency of §III-D.
    """

    gammas: tuple[int, ...]
    seconds: FloatArray
    sample_s: FloatArray

    @classmethod
    def of(cls, profile: CostProfile, memory_bytes: int | None = None) -> Costs:
        """The costs of the batches that may be.

        Args:
            profile: measured.
            memory_bytes: that a batch may take (M_GPU); None is no limit.

        Raises:
            InvalidArgument: memory does not allow even one query at every γ.
        """
        sizes = range(1, profile.max_batch + 1)
        seconds = np.zeros((len(profile.gammas), profile.max_batch + 1))
        for place, gamma in enumerate(profile.gammas):
            seconds[place, 1:] = [profile.latency_s(gamma, size) for size in sizes]
            if memory_bytes is not None:
                takes = np.array([profile.memory_bytes(gamma, size) for size in sizes])
                seconds[place, 1:][takes > memory_bytes] = np.inf
        largest = np.isfinite(seconds).sum(axis=1) - 1
        if not largest.all():
            gamma = profile.gammas[int(np.argmin(largest))]
            raise InvalidArgument(
                f"{memory_bytes} bytes of memory do not allow one query at γ {gamma}, which takes "
                f"{profile.memory_bytes(gamma, 1)}"
            )
        return cls(profile.gammas, seconds, seconds[np.arange(len(largest)), largest] / largest)

    def slowed(self, factor: float) -> Costs:
        """The same where everything takes so many times as long."""
        return Costs(self.gammas, self.seconds * factor, self.sample_s * factor)

    @property
    def max_batch(self) -> int:
        """Queries in a batch at most, whatever its γ."""
        return self.seconds.shape[1] - 1

    @property
    def alone_s(self) -> float:
        """The fewest seconds that any query takes."""
        return float(self.seconds[:, 1].min())


def earnings(profile: CostProfile, query: Query) -> FloatArray:
    """[gammas] what a query's answer in time is expected to earn: utility times accuracy; raises as `accuracy`."""
    return query.utility * np.array([profile.accuracy(query.task, gamma) for gamma in profile.gammas])
