"""Deployment of instances on GPUs: loading takes time, and replacements happen a few at a time (Arlo §4)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from tidal.arlo.scheduling import Replacement, replacement_batches, replacement_plan
from tidal.arlo.scheduling import batch_size as default_batch_size
from tidal.errors import InvalidArgument


class Allocatable(Protocol):
    """A policy whose number of instances can change."""

    def allocate(self, instances: Sequence[int]) -> None:
        """Change the number of instances by runtime."""


class Deployment:
    """The runtime of each GPU, and the GPUs that are loading one.

    Args:
        policy: Policy that is updated with every change.
        instances: Initial instances of the policy, by runtime.
        delay_s: Time that a GPU takes to load a runtime, in seconds; it serves nothing meanwhile.
        batch_size: Number of GPUs to replace at a time; None: as the controller does.
    """

    def __init__(
        self, policy: Allocatable, instances: Sequence[int], *, delay_s: float = 1.0, batch_size: int | None = None
    ) -> None:
        if not 0 <= delay_s < math.inf:
            raise InvalidArgument(f"the replacement delay must be at least 0 s, got {delay_s:g}")
        self.instances = list(instances)
        """Instances that serve, by runtime."""
        self.loading = [0] * len(self.instances)
        """GPUs that are loading, by runtime."""
        self.replaced = 0
        self._policy = policy
        self._delay_s = delay_s
        self._batch_size = batch_size
        self._plan: deque[list[Replacement]] = deque()
        self._loads: list[tuple[float, int, int]] = []  # when, order, runtime
        self._order = count()

    @property
    def held(self) -> list[int]:
        """GPUs that serve or load, by runtime."""
        return [have + coming for have, coming in zip(self.instances, self.loading, strict=True)]

    @property
    def gpus(self) -> int:
        """Number of GPUs in use."""
        return sum(self.held)

    @property
    def changing(self) -> bool:
        """Whether instances are loading or will be replaced."""
        return bool(self._loads or self._plan)

    @property
    def next_change(self) -> float:
        """Time when the next GPU has loaded its runtime; infinite if none is loading."""
        return self._loads[0][0] if self._loads else math.inf

    def replace(self, now: float, wanted: Sequence[int]) -> None:
        """Replace instances until the given ones run; an earlier plan is dropped.

        Args:
            now: Current time in seconds.
            wanted: Instances to run, by runtime.
        """
        plan = replacement_plan([self.held], [wanted])
        self._plan = deque(replacement_batches(plan, self._batch_size or default_batch_size(self.gpus)))
        self._begin(now)

    def add(self, now: float, runtime: int) -> None:
        """Add a GPU, which loads a runtime."""
        self._load(now, runtime)

    def release(self, runtime: int) -> None:
        """Release the GPU of the least loaded instance of a runtime; no change may be in progress."""
        self.instances[runtime] -= 1
        self._policy.allocate(self.instances)

    def update(self, now: float) -> None:
        """Finish the loads that are due; call it at `next_change`."""
        while self._loads and self._loads[0][0] <= now:
            _, _, runtime = heappop(self._loads)
            self.loading[runtime] -= 1
            self.instances[runtime] += 1
        self._policy.allocate(self.instances)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Start the next batch of replacements once no GPU is loading, so that no runtime loses its last instance."""
        while self._plan and not self._loads:
            for each in self._plan.popleft():
                if each.source is not None:
                    self.instances[each.source] -= 1
                if each.target is not None:
                    self._load(now, each.target)
                self.replaced += 1
            self._policy.allocate(self.instances)

    def _load(self, now: float, runtime: int) -> None:
        self.loading[runtime] += 1
        heappush(self._loads, (now + self._delay_s, next(self._order), runtime))
