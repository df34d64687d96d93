"""Instances come and go as they do on GPUs: with a delay, and when they are replaced, a few at a time (Arlo §4)."""

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
    """A policy whose instances can be told."""

    def allocate(self, instances: Sequence[int]) -> None:
        """Change the number of instances by runtime."""


class Deployment:
    """Which runtime each GPU holds, and which GPUs are just loading one.

    Args:
        policy: is told of every change.
        instances: by runtime, as the policy has them.
        delay_s: how long a GPU takes to load a runtime; it serves nothing meanwhile.
        at_once: GPUs that are replaced at a time; None for as many as the controller replaces.
    """

    def __init__(
        self, policy: Allocatable, instances: Sequence[int], *, delay_s: float = 1.0, batch_size: int | None = None
    ) -> None:
        if not 0 <= delay_s < math.inf:
            raise InvalidArgument(f"the delay of a replacement must be 0 s or more, got {delay_s:g}")
        self.instances = list(instances)
        """By runtime, those that serve."""
        self.loading = [0] * len(self.instances)
        """By runtime, GPUs that load it."""
        self.replaced = 0
        self._policy = policy
        self._delay_s = delay_s
        self._batch_size = batch_size
        self._plan: deque[list[Replacement]] = deque()
        self._loads: list[tuple[float, int, int]] = []  # when, order, runtime
        self._order = count()

    @property
    def held(self) -> list[int]:
        """By runtime, GPUs that serve or load it."""
        return [have + coming for have, coming in zip(self.instances, self.loading, strict=True)]

    @property
    def gpus(self) -> int:
        """GPUs that are paid for."""
        return sum(self.held)

    @property
    def changing(self) -> bool:
        """Whether instances load or are still to be replaced."""
        return bool(self._loads or self._plan)

    @property
    def next_change(self) -> float:
        """When the next GPU has loaded its runtime, infinite when none loads any."""
        return self._loads[0][0] if self._loads else math.inf

    def replace(self, now: float, wanted: Sequence[int]) -> None:
        """Go from what there is, what loads included, to the wanted instances; what was planned before is dropped."""
        plan = replacement_plan(self.held, wanted)
        self._plan = deque(replacement_batches(plan, self._batch_size or default_batch_size(self.gpus)))
        self._begin(now)

    def add(self, now: float, runtime: int) -> None:
        """A new GPU loads a runtime."""
        self._load(now, runtime)

    def release(self, runtime: int) -> None:
        """Give back the GPU of the least loaded instance of a runtime, when nothing changes just now."""
        self.instances[runtime] -= 1
        self._policy.allocate(self.instances)

    def update(self, now: float) -> None:
        """To be called at `next_change`."""
        while self._loads and self._loads[0][0] <= now:
            _, _, runtime = heappop(self._loads)
            self.loading[runtime] -= 1
            self.instances[runtime] += 1
        self._policy.allocate(self.instances)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """The next few GPUs of the plan, once all that load are there: only then no runtime loses its last one."""
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
