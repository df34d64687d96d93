"""Replacing, adding and releasing GPUs over time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.arlo.scheduling import batch_size
from tidal.errors import InvalidArgument
from tidal.simulator.arlo.deployment import Deployment


class Recorder:
    """A policy that records its allocations."""

    def __init__(self) -> None:
        self.allocations: list[tuple[int, ...]] = []

    def allocate(self, instances: Sequence[int]) -> None:
        assert min(instances) >= 0
        assert instances[-1] >= 1
        self.allocations.append(tuple(instances))


def advance_to_end(deployment: Deployment) -> float:
    """Apply all pending changes and return the time of the last."""
    now = 0.0
    while deployment.changing:
        now = deployment.next_change
        deployment.update(now)
    return now


def test_a_replacement_is_delayed_and_runs_in_batches() -> None:
    policy = Recorder()
    deployment = Deployment(policy, [4, 0, 1], delay_s=1.0, batch_size=2)
    deployment.replace(10.0, [1, 3, 1])
    assert policy.allocations == [(2, 0, 1)]
    assert (deployment.loading, deployment.gpus, deployment.next_change) == ([0, 2, 0], 5, 11.0)
    deployment.update(11.0)
    assert policy.allocations[1:] == [(2, 2, 1), (1, 2, 1)]
    deployment.update(12.0)
    assert policy.allocations[-1] == (1, 3, 1)
    assert not deployment.changing
    assert deployment.replaced == 3


def test_the_default_batch_size_is_that_of_the_controller() -> None:
    deployment = Deployment(Recorder(), [99, 1])
    deployment.replace(0.0, [50, 50])
    assert sum(deployment.loading) == batch_size(100) == 5


def test_a_new_plan_replaces_the_old_one_and_counts_loading_instances() -> None:
    policy = Recorder()
    deployment = Deployment(policy, [4, 0, 1], batch_size=1)
    deployment.replace(0.0, [0, 4, 1])
    deployment.replace(0.5, [3, 1, 1])  # the loading instance is the only one needed
    assert advance_to_end(deployment) == 1.0
    assert policy.allocations[-1] == (3, 1, 1)
    assert deployment.replaced == 1


def test_added_gpus_load_first_and_released_ones_end_at_once() -> None:
    policy = Recorder()
    deployment = Deployment(policy, [1, 0, 1], delay_s=2.0)
    deployment.add(5.0, 2)
    assert (deployment.gpus, policy.allocations) == (3, [])
    deployment.update(7.0)
    assert policy.allocations == [(1, 0, 2)]
    deployment.release(0)
    assert (policy.allocations[-1], deployment.gpus) == ((0, 0, 2), 2)


@given(
    wanted=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.floats(0, 3), st.booleans()), max_size=8
    )
)
def test_the_number_of_gpus_is_kept_and_the_longest_runtime_always_serves(
    wanted: list[tuple[int, int, int, float, bool]],
) -> None:
    policy = Recorder()  # checks the last runtime
    deployment = Deployment(policy, [4, 4, 4], batch_size=2)
    now, gpus = 0.0, 12
    for first, second, third, after, grow in wanted:
        if grow:
            deployment.add(now, 2)
            gpus += 1
        shares = [first, second, third]
        counts = [gpus * share // (sum(shares) + 1) for share in shares]
        counts[-1] += gpus - sum(counts)
        deployment.replace(now, counts)
        until = now + after
        while deployment.next_change <= until:
            deployment.update(deployment.next_change)
        now = until
        assert deployment.gpus == gpus
        last = counts
    advance_to_end(deployment)
    if wanted:
        assert deployment.instances == last


def test_a_bad_delay_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="replacement delay must be at least 0 s, got -1"):
        Deployment(Recorder(), [1], delay_s=-1)
