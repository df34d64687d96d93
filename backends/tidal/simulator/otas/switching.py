"""Model switching, as INFaaS does it in OTAS's evaluation (§V): the model size by the load, and its loading time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidal.otas.policies import Query
from tidal.otas.policies.base import GroupedPolicy
from tidal.otas.policies.costs import FloatArray
from tidal.otas.policies.groups import Batching, Group
from tidal.otas.policies.rate import ArrivalRate


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A size of the model.

    Args:
        throughput: queries a second that it sustains.
        load_s: seconds until it is on the device in place of another; nothing runs meanwhile.
        accuracies: by task.
    """

    throughput: float
    load_s: float
    accuracies: Mapping[str, float]


@dataclass(frozen=True)
class _VariantProfile:
    """Variants as a profile: a variant's place, the most accurate the largest, stands for γ."""

    variants: Sequence[ModelVariant]
    seconds: Sequence[Sequence[float]]

    @property
    def gammas(self) -> tuple[int, ...]:
        return tuple(range(len(self.variants)))

    @property
    def max_batch(self) -> int:
        return len(self.seconds[0]) - 1

    def latency_s(self, gamma: int, batch: int) -> float:
        return self.seconds[gamma][batch]

    def memory_bytes(self, gamma: int, batch: int) -> int:
        return 0

    def accuracy(self, task: str, gamma: int) -> float:
        return self.variants[gamma].accuracies[task]

    def gamma_for_rate(self, rate: float) -> int:
        return _sustaining([each.throughput for each in self.variants], rate)


def _sustaining(throughputs: Sequence[float], rate: float) -> int:
    """The last place, which is the most accurate variant's, whose throughput is no less than a rate; else the first."""
    return max((place for place, most in enumerate(throughputs) if most >= rate), default=0)


class SizeByLoad:
    """Once a period, the most accurate variant that sustains the rate at which queries arrive.

    Args:
        throughputs: queries a second of each variant, descending: the most accurate is the last.
        period_s: how often the variant is chosen anew, seconds. Times are seconds from a start at 0 on.

    Attributes:
        place: the variant that was chosen last; the middle one at first.
    """

    def __init__(self, throughputs: Sequence[float], *, period_s: float = 1.0) -> None:
        self.place = len(throughputs) // 2
        self._throughputs = throughputs
        self._period_s = period_s
        self._chosen_at = 0.0
        self._rate = ArrivalRate()

    def arrived(self, now: float) -> None:
        """A query has arrived."""
        self._rate.add(now)

    def look(self, now: float) -> bool:
        """Choose anew where it is time to; whether `place` is another one now."""
        if now - self._chosen_at < self._period_s:
            return False
        self._chosen_at = now
        before = self.place
        self.place = _sustaining(self._throughputs, self._rate.at(now))
        return self.place != before


class ModelSwitching(GroupedPolicy):
    """Algorithm 1's batches, the earliest deadline first, on the variant that `SizeByLoad` chooses.

    When that is another one than the one on the device, it is loaded at once, and nothing runs until it is there; the
    first is there already. Predictions include the loading, so a batch takes the seconds that it is predicted to.

    Args:
        variants: ascending by accuracy and descending by throughput.
        seconds: by variant, seconds of a batch by number of queries from 0 on.
        period_s: how often the variant is chosen anew, seconds.
    """

    def __init__(
        self, variants: Sequence[ModelVariant], seconds: Sequence[Sequence[float]], *, period_s: float = 1.0
    ) -> None:
        self.profile = _VariantProfile(variants, seconds)
        super().__init__(self.profile)
        self.loads = 0
        self._batching = Batching()
        self._size = SizeByLoad([each.throughput for each in variants], period_s=period_s)
        self._ready_at = 0.0
        self._loading_s = 0.0  # from the decision that is being made on

    def _group_for(self, query: Query) -> Group | None:
        return self._batching.group_for(query, self._groups)

    def _added(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:
        self._size.arrived(now)

    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        if self._size.look(now):
            self._ready_at = now + self.profile.variants[self._size.place].load_s
            self.loads += 1
        self._loading_s = max(self._ready_at - now, 0.0)
        return min(self._groups, key=lambda group: group.deadline).queries, self._size.place

    def _seconds(self, place: int, queries: int) -> float:
        return self._loading_s + super()._seconds(place, queries)
