"""Helpers that put a partitioned policy into a given state and observe its dispatching."""

from __future__ import annotations

from tidal.arlo.policies import ArloBatch, ArloQuery, PartitionedPolicy
from tidal.arlo.policies.levels import RuntimeInstance, RuntimeLevel


def make_level(max_length: int, capacity: int, outstanding: list[int]) -> RuntimeLevel:
    """Return a level whose instances have these numbers of outstanding queries."""
    level = RuntimeLevel(max_length, capacity, 1.0 / capacity)
    level.arrange(RuntimeInstance(lane, 0, waiting=waiting) for lane, waiting in enumerate(outstanding))
    return level


def capacities_of(policy: PartitionedPolicy) -> list[int]:
    """Return the queries that one instance finishes within the SLO, by runtime."""
    return [level.capacity for level in policy._levels]


def take(policy: PartitionedPolicy, length: int) -> int:
    """Submit a query and return the runtime that it was dispatched to."""
    before = policy.outstanding
    policy.submit(ArloQuery(length, 0.0))
    return next(i for i, (b, a) in enumerate(zip(before, policy.outstanding, strict=True)) if a == b + 1)


def load(policy: PartitionedPolicy, outstanding: tuple[tuple[int, ...], ...]) -> None:
    """Set the outstanding queries of the policy's instances, by runtime."""
    for runtime, counts in enumerate(outstanding):
        instances = [each for each in policy._instances.values() if each.runtime == runtime]
        for instance, waiting in zip(instances, counts, strict=True):
            instance.waiting = waiting
            policy._levels[runtime].update(instance)


def loads(policy: PartitionedPolicy) -> list[list[int]]:
    """Return the outstanding queries of each instance, by runtime."""
    each = list(policy._instances.values())
    return [[i.load for i in each if i.runtime == runtime] for runtime in range(len(policy._levels))]


def start(policy: PartitionedPolicy) -> ArloBatch:
    batch = policy.next_batch(0.0)
    assert batch is not None
    return batch
