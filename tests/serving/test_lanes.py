"""The selection between wide and narrow lanes: hand-made cases, brute force and invariants."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.serving.lanes import LaneMode, LanePolicy, sum_of_waiting


def run(
    policy: LanePolicy, takes: dict[bool, float], cost: dict[bool, float], batches: int, predicted: float = 1.0
) -> list[int]:
    """Run batches from a queue that never ends, and return their lanes; keys are whether the mode is narrow."""
    running: list[tuple[float, int]] = []
    now, lanes = 0.0, list[int]()

    def narrow(mode: LaneMode) -> bool:
        return mode is policy.narrow

    while len(lanes) < batches:
        while policy.free:
            policy.note_arrival(10)
            mode = policy.select(lambda each: cost[narrow(each)])
            if mode is None:
                break
            lanes.append(policy.start(mode, 1))
            running.append((now + takes[narrow(mode)], lanes[-1]))
        running.sort()
        now, lane = running.pop(0)
        policy.finished(lane, predicted, takes[lane > 0])
    for _, lane in running:
        policy.finished(lane, predicted)
    return lanes


class TestSelection:
    def test_without_narrow_lanes_no_cost_is_computed(self) -> None:
        policy = LanePolicy(3)

        def never(_mode: LaneMode) -> float:
            raise AssertionError

        assert [policy.start(policy.select(never) or policy.wide, 1) for _ in range(3)] == [0, 1, 2]
        assert not policy.free
        policy.finished(1, 1.0, 1.0)
        assert policy.start(policy.wide, 1) == 1
        assert policy.max_concurrency == policy.busy == 3

    @pytest.mark.parametrize("only_wide", [False, True])
    def test_an_idle_machine_selects_the_cheaper_mode_unless_only_wide_is_in_time(self, only_wide: bool) -> None:
        policy = LanePolicy(1, 2)
        mode = policy.select(lambda each: 1.0 if each is policy.narrow else 2.0, only_wide=only_wide)
        assert mode is (policy.wide if only_wide else policy.narrow)

    def test_drained_lanes_start_nothing_until_all_are_idle(self) -> None:
        policy = LanePolicy(1, 2)
        narrow = policy.narrow
        assert narrow is not None
        better = {False: 2.0, True: 1.0}

        def cost(mode: LaneMode) -> float:
            return better[mode is narrow]

        for _ in range(2):
            assert policy.select(cost) is narrow
            policy.start(narrow, 1)
        better = {False: 1.0, True: 2.0}
        for _ in range(100):
            policy.finished(1, 1.0)
            if policy.select(cost) is None:
                break
            assert policy.start(narrow, 1) == 1
        assert (policy.free, policy.busy) == (False, 1)
        policy.finished(2, 1.0)
        assert policy.free
        assert policy.select(cost) is policy.wide

    @pytest.mark.parametrize("slow", [False, True])
    def test_trials_of_a_much_slower_mode_are_rare(self, slow: bool) -> None:
        """A trial of 100 s beside batches of 1 s."""
        lanes = run(LanePolicy(1, 2), {slow: 100.0, not slow: 1.0}, {False: 1.0, True: 1.0}, 20_000)
        tried = sum((lane > 0) is slow for lane in lanes)
        assert 1 <= tried <= 16

    def test_the_first_batch_of_a_mode_that_has_not_run_for_long_does_not_count(self) -> None:
        """A lone client, whose queries take 1 s on all threads, 1.5 s on one, and 3 s if a mode has not run lately."""
        policy = LanePolicy(1, 2)
        run(policy, {False: 5.0, True: 1.5}, {False: 1.0, True: 1.0}, 1000)
        modes = list[LaneMode]()
        for _ in range(6000):
            mode = policy.select(lambda _: 1.0)
            assert mode is not None
            usual = 1.0 if mode is policy.wide else 1.5
            policy.finished(policy.start(mode, 1), 1.0, usual if mode in modes[-20:] else 3.0)
            modes.append(mode)
        assert modes[-1000:].count(policy.wide) >= 980

    def test_what_a_load_showed_does_not_count_for_a_lone_client(self) -> None:
        """Under load all threads take twice as long as predicted; alone, they take 2.5 ms as predicted, one takes 4."""
        policy = LanePolicy(1, 2)
        loaded = run(policy, {False: 0.080, True: 0.044}, {False: 0.040, True: 0.040}, 2000, predicted=0.040)
        assert sum(lane > 0 for lane in loaded[-500:]) >= 450
        predicted, alone = {False: 0.0025, True: 0.0026}, {False: 0.0025, True: 0.0040}
        lanes = list[int]()
        for _ in range(40):
            policy.note_arrival(0)
            mode = policy.select(lambda each: predicted[each is policy.narrow])
            assert mode is not None
            lanes.append(policy.start(mode, 1))
            policy.finished(lanes[-1], predicted[lanes[-1] > 0], alone[lanes[-1] > 0])
        assert lanes[-20:] == [0] * 20

    def test_short_batches_after_a_peak_of_long_ones_are_tried_in_both_modes_soon(self) -> None:
        """A trial of 6 s must not rest a mode for a thousand seconds of batches of 0.1 s."""
        policy = LanePolicy(1, 2)
        equal = {False: 1.0, True: 1.0}
        assert set(run(policy, {False: 6.0, True: 3.0}, equal, 1000, predicted=4.0)[-50:]) >= {1, 2}
        after = run(policy, {False: 0.1, True: 0.14}, equal, 3000, predicted=0.2)
        assert after[-500:].count(0) >= 450

    def test_a_mode_that_becomes_faster_is_used_again(self) -> None:
        policy = LanePolicy(1, 2)
        equal = {False: 1.0, True: 1.0}
        assert set(run(policy, {False: 10.0, True: 2.0}, equal, 1000)[-50:]) >= {1, 2}
        late = run(policy, {False: 0.5, True: 2.0}, equal, 10_000)
        assert late[-1000:].count(0) >= 950


def test_lanes_that_are_drained_queue_no_batches() -> None:
    policy = LanePolicy(1, 2, queued=1)
    cost = {policy.wide: 2.0, policy.narrow: 1.0}
    running: list[int] = []
    for _ in range(40):
        while policy.free or policy.queues:
            mode = policy.select(cost.__getitem__)
            assert mode is policy.narrow
            running.append(policy.start(mode, 1))
        assert len(running) == 3
        policy.finished(running.pop(0), 1.0, 1.0)
    cost[policy.narrow] = 9.0
    while policy.queues and (mode := policy.select(cost.__getitem__)) is not None:
        running.append(policy.start(mode, 1))
        policy.finished(running.pop(0), 1.0, 1.0)
    while running:
        assert not policy.free
        assert not policy.queues
        policy.finished(running.pop(0), 1.0, 1.0)
    assert policy.free


@given(
    costs=st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=300),
    took=st.lists(st.one_of(st.none(), st.floats(1e-3, 20)), min_size=1, max_size=30),
    ends=st.lists(st.booleans(), min_size=1, max_size=30),
    wide=st.integers(1, 2),
    narrow=st.integers(0, 4),
    queued=st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_modes_never_mix_lanes_are_never_shared_and_work_never_stops(
    costs: list[tuple[float, float]], took: list[float | None], ends: list[bool], wide: int, narrow: int, queued: int
) -> None:
    policy = LanePolicy(wide, narrow, queued)
    running: list[int] = []
    for (wide_cost, narrow_cost), took_s, end in zip(costs, itertools.cycle(took), itertools.cycle(ends), strict=False):
        if not running:
            assert policy.free
        if policy.free or policy.queues:
            policy.note_arrival(len(running))
            by_mode = {policy.wide: wide_cost, policy.narrow: narrow_cost}
            mode = policy.select(by_mode.__getitem__)
            if mode is None:
                assert running
                assert not policy.free
                assert not policy.queues
            else:
                lane = policy.start(mode, 1)
                assert lane not in running
                assert {each < wide for each in running} <= {lane < wide}
                running.append(lane)
        assert policy.busy == len(running) <= policy.max_concurrency
        if running and (end or not (policy.free or policy.queues)):
            policy.finished(running.pop(0), 1.0, took_s)


@pytest.mark.parametrize(
    ("profile_ms", "true_ms", "slower"),
    [
        # Profiles of all threads and of one, measured beside other processes: slower, and in the wrong order.
        ((10.3, 8.75), (2.6, 4.2), 100),
        ((20.0, 16.0), (2.6, 4.2), 100),
        ((8.7, 5.2), (2.6, 4.2), 300),
        # Another process occupies a thread only when the model is served.
        ((2.6, 4.2), (8.0, 4.2), 100),
    ],
)
def test_a_lone_client_leaves_the_mode_that_a_wrong_profile_prefers(
    profile_ms: tuple[float, float], true_ms: tuple[float, float], slower: int
) -> None:
    policy, wrong = LanePolicy(1, 2), 0
    better = true_ms.index(min(true_ms))
    for _ in range(4000):
        policy.note_arrival(0)
        mode = policy.select(lambda each: profile_ms[each is policy.narrow])
        assert mode is not None
        narrow = mode is policy.narrow
        policy.finished(policy.start(mode, 1), profile_ms[narrow], true_ms[narrow])
        wrong += narrow != better
    assert wrong < slower


@given(
    batches=st.lists(st.tuples(st.floats(0.1, 9), st.integers(1, 5)), max_size=8),
    lanes=st.integers(1, 3),
    behind=st.integers(0, 4),
)
def test_the_sum_of_waiting_is_that_of_first_free_lanes(
    batches: list[tuple[float, int]], lanes: int, behind: int
) -> None:
    busy = [0.0] * lanes
    total = 0.0
    for seconds, queries in batches:
        first = busy.index(min(busy))
        busy[first] += seconds
        total += queries * busy[first]
    assert sum_of_waiting(batches, lanes=lanes, behind=behind) == pytest.approx(total + behind * min(busy))
