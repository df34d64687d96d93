"""Model switching as by INFaaS in OTAS's evaluation (§V): model size by load, with loading times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidal.otas.policies import Query
from tidal.otas.policies.base import GroupedPolicy
from tidal.otas.policies.costs import FloatArray
from tidal.otas.policies.groups import Batching, Group
from tidal.otas.policies.rate import ArrivalRate

# Time between selections.
_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A size of the model.

    Args:
        throughput: Queries per second that it sustains.
        load_s: Time to load it onto the device in place of another size, in seconds; nothing runs meanwhile.
        accuracies: Accuracy by task.
    """

    throughput: float
    load_s: float
    accuracies: Mapping[str, float]


@dataclass(frozen=True)
class _VariantProfile:
    """Variants as a profile: the index of a variant, ascending by accuracy, takes the role of γ."""

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


def _sustaining(up_to: Sequence[float], rate: float) -> int:
    """Return the index of the most accurate variant for a rate; 0 if none is for so high a rate."""
    return max((index for index, most in enumerate(up_to) if most >= rate), default=0)


class SizeByLoad:
    """Selects, once per second, the most accurate variant for the arrival rate.

    Args:
        up_to: Highest rate in queries per second at which each variant is selected, such as what it sustains,
            descending; the last variant is the most accurate. Times start at 0.

    Attributes:
        place: Index of the selected variant; at first the middle one.
    """

    def __init__(self, up_to: Sequence[float]) -> None:
        self.place = len(up_to) // 2
        self._up_to = up_to
        self._chosen_at = 0.0
        self._rate = ArrivalRate()

    def arrived(self, now: float) -> None:
        """Record an arrival."""
        self._rate.add(now)

    def look(self, now: float) -> bool:
        """Select again if a second has passed; return whether the variant changed."""
        if now - self._chosen_at < _PERIOD_S:
            return False
        self._chosen_at = now
        before = self.place
        self.place = _sustaining(self._up_to, self._rate.at(now))
        return self.place != before


class ModelSwitching(GroupedPolicy):
    """Runs Algorithm 1's batches, earliest deadline first, on the variant that `SizeByLoad` selects.

    A newly selected variant is loaded at once; nothing runs and nothing else is selected until it is loaded. The middle
    variant is loaded at the start. Predicted durations include the loading time.

    Args:
        variants: Variants, ascending by accuracy and descending by throughput.
        seconds: Duration of a batch by variant and number of queries, from 0.
        up_to: Highest arrival rate at which each variant is selected, see `SizeByLoad`; None: what it sustains.
    """

    def __init__(
        self,
        variants: Sequence[ModelVariant],
        seconds: Sequence[Sequence[float]],
        *,
        up_to: Sequence[float] | None = None,
    ) -> None:
        self.profile = _VariantProfile(variants, seconds)
        super().__init__(self.profile)
        self.loads = 0
        self._batching = Batching()
        self._size = SizeByLoad([each.throughput for each in variants] if up_to is None else up_to)
        self._ready_at = 0.0
        self._loading_s = 0.0  # counted from the current decision

    def _group_for(self, query: Query) -> Group | None:
        return self._batching.group_for(query, self._groups)

    def _added(self, query: Query, group: Group, earned: FloatArray, now: float) -> None:
        self._size.arrived(now)

    def _choose(self, now: float) -> tuple[Sequence[Query], int]:
        if now >= self._ready_at and self._size.look(now):
            self._ready_at = now + self.profile.variants[self._size.place].load_s
            self.loads += 1
        self._loading_s = max(self._ready_at - now, 0.0)
        return min(self._groups, key=lambda group: group.deadline).queries, self._size.place

    def _seconds(self, place: int, queries: int) -> float:
        return self._loading_s + super()._seconds(place, queries)
