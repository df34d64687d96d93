"""Invariants of the scheduler under random arrivals, lengths and cancellations."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.flover.policies import FloverScheduler, PrefillChunk, ProfiledCosts, Schedulable
from tidal.profiles import LatencyProfile


class Linear:
    """A step takes 10 ms plus 1 ms per sequence and 1 µs per token of each.

    A prompt token takes 0.5 ms plus 1 µs per token before it.
    """

    def decode_seconds(self, running: int, tokens: int) -> float:
        return 0.010 + 0.001 * running + 1e-6 * running * tokens

    def prefill_seconds(self, start: int, end: int) -> float:
        return (end - start) * 0.0005 + (end * end - start * start) * 5e-7

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        return self.prefill_seconds(start, end)


COSTS = Linear()


def step_seconds(running: Collection[Schedulable]) -> float:
    """Duration of a step, from the tokens of the prompts."""
    slots = sum(each.slots for each in running)
    return COSTS.decode_seconds(slots, sum(each.slots * each.prompt_tokens for each in running) // slots)


@dataclass
class SimulatedService:
    """A simulated service: every generation ends after its first token and `steps` more."""

    scheduler: FloverScheduler[Schedulable]
    steps: dict[Schedulable, int] = field(default_factory=dict)
    held: dict[Schedulable, int] = field(default_factory=dict)  # prefilled tokens of each generation that has slots
    waited: dict[Schedulable, int] = field(default_factory=dict)  # iterations without a token
    ended: list[Schedulable] = field(default_factory=list)
    refused: list[Schedulable] = field(default_factory=list)
    starting: int = 0  # tokens that may still be prefilled beyond the bound
    uncleared: int = 0  # bytes of the slots of each generation

    def add(self, generations: list[Schedulable], steps: int) -> None:
        self.steps.update(dict.fromkeys(generations, steps))
        self.scheduler.add(*generations)

    def iterate(self, now: float, slots: int, share: float) -> float:
        """Run one iteration, check its invariants, and return its duration in seconds."""
        running = {each for each in self.held if self.held[each] == each.prompt_tokens}
        assert len(running) == self.scheduler.running
        decision = self.scheduler.admit(now)
        self.refused += decision.refused
        assert all(each not in self.held for each in (*decision.refused, *decision.admitted))
        self.held.update(dict.fromkeys(decision.admitted, 0))
        for each in decision.admitted:
            each.uncleared = self.uncleared
        assert sum(each.slots for each in self.held) <= slots
        prefill_s = 0.0
        chunks, clearing = self.scheduler.prefill(), self.scheduler.clearing
        tokens = sum(chunk.end - chunk.start for chunk in chunks)
        if clearing is not None:
            assert running
            assert clearing.item.uncleared > 0 == self.held[clearing.item]
            prefill_s += clearing.seconds
            clearing.item.uncleared -= 1
        if not running:
            self.starting = 1024
        starts = self.starting > 0 and tokens <= 512 and all(chunk.last for chunk in chunks)
        self.starting = self.starting - tokens if chunks and (starts or not running) else 0
        for chunk in chunks:
            assert self.held[chunk.item] == chunk.start < chunk.end <= chunk.item.prompt_tokens
            assert not chunk.item.uncleared
            self.held[chunk.item] = chunk.end
            prefill_s += COSTS.prefill_seconds(chunk.start, chunk.end)
        assert len({chunk.item for chunk in chunks}) == len(chunks)
        if not running:
            assert tokens <= 512
        elif starts:
            pass  # more than the bound
        elif len(chunks) != 1 or clearing is not None:
            assert prefill_s <= share * step_seconds(running) + 1e-9
        else:
            chunk = chunks[0]
            assert prefill_s <= share * step_seconds(running) + 1e-9 or chunk.end - chunk.start <= 16
        if any(prefilled < each.prompt_tokens for each, prefilled in self.held.items() if each not in running):
            assert chunks or clearing is not None  # every iteration prefills
        for chunk in chunks:
            if chunk.last:
                running.add(chunk.item)
        assert len(running) == self.scheduler.running
        assert running or not self.held or chunks
        for each in [each for each in self.held if each in running]:  # a set has another order in each run
            self.steps[each] -= 1
            if self.steps[each] < 0:
                self.end(each)
        return prefill_s + (step_seconds(running) if running else 0.0)

    def end(self, generation: Schedulable) -> None:
        self.scheduler.remove(generation)
        self.held.pop(generation, None)
        self.ended.append(generation)


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0, 2),
        st.lists(st.integers(1, 900), min_size=1, max_size=3),
        st.integers(0, 20),
        st.sampled_from([math.inf, 0.05, 1.0]),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=30,
)


@given(
    ARRIVALS, st.integers(1, 6), st.sampled_from([0.3, 1.0, 4.0]), st.integers(0, 3),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_generation_ends_or_is_refused(
    arrivals: list[tuple[float, list[int], int, float, int]], slots: int, share: float, uncleared: int,
    rng: random.Random,
) -> None:  # fmt: skip
    scheduler = FloverScheduler[Schedulable](slots, COSTS, prefill_share=share)
    service, now, cancelled = SimulatedService(scheduler, uncleared=uncleared), 0.0, 0
    arriving = sorted(arrivals, key=lambda each: each[0])
    for _ in range(100_000):
        while arriving and arriving[0][0] <= now:
            arrival, prompts, steps, patience, beams = arriving.pop(0)
            taken = min(beams, slots)
            service.add([Schedulable(arrival, arrival + patience, prompt, taken) for prompt in prompts], steps)
        candidates = list(scheduler)
        if candidates and rng.random() < 0.02:
            service.end(rng.choice(candidates))
            cancelled += 1
        if scheduler.idle:
            if not arriving:
                break
            now = arriving[0][0]
            continue
        now += service.iterate(now, slots, share) or 1e-4
    assert scheduler.idle
    assert not service.held
    assert len(service.ended) + len(service.refused) == sum(len(prompts) for _, prompts, *_ in arrivals)
    assert all(now + COSTS.prefill_seconds(0, each.prompt_tokens) > each.deadline for each in service.refused)


def submit(
    scheduler: FloverScheduler[Schedulable], arrival: float, prompt: int, deadline: float = math.inf, slots: int = 1
) -> Schedulable:
    generation = Schedulable(arrival, deadline, prompt, slots)
    scheduler.add(generation)
    return generation


def iterate(scheduler: FloverScheduler[Schedulable], now: float) -> tuple[PrefillChunk[Schedulable], ...]:
    scheduler.admit(now)
    return scheduler.prefill()


def test_a_short_prompt_overtakes_a_recent_long_one_only() -> None:
    scheduler = FloverScheduler[Schedulable](2, COSTS, prefill_share=1.0)
    long, short = submit(scheduler, 0.0, 2000), submit(scheduler, 0.3, 10)
    assert [each.item for each in iterate(scheduler, 0.3)] == [short, long]
    late = FloverScheduler[Schedulable](1, COSTS, prefill_share=1.0)
    long, short = submit(late, 0.0, 400), submit(late, 5.0, 10)
    assert late.admit(5.0).admitted == (long,)
    assert [*late] == [short, long]


def test_a_generation_with_beams_gets_all_its_slots_at_once_and_in_order() -> None:
    scheduler = FloverScheduler[Schedulable](4, COSTS, prefill_share=1.0)
    first, beams, last = (
        submit(scheduler, 0.0, 1, slots=2),
        submit(scheduler, 1.0, 1, slots=3),
        submit(scheduler, 2.0, 1),
    )
    assert scheduler.waiting_slots == 6
    assert scheduler.admit(2.0).admitted == (first,)
    assert scheduler.admit(2.1).admitted == ()  # two slots are free, and reserved for the head of the queue
    scheduler.remove(first)
    assert scheduler.admit(2.2).admitted == (beams, last)


def test_a_single_prompt_overtakes_those_of_a_recent_request_of_many() -> None:
    scheduler = FloverScheduler[Schedulable](2, COSTS, prefill_share=1.0)
    many = [Schedulable(0.0, math.inf, 100) for _ in range(4)]
    scheduler.add(*many)
    single = submit(scheduler, 0.5, 100)
    assert [*scheduler] == [many[0], single, *many[1:]]


def test_a_generation_runs_after_its_last_chunk() -> None:
    scheduler = FloverScheduler[Schedulable](4, COSTS, prefill_share=1.0)
    first = submit(scheduler, 0.0, 30)
    assert [(each.start, each.end, each.last) for each in iterate(scheduler, 0.0)] == [(0, 30, True)]
    assert scheduler.running == 1
    iterate(scheduler, 0.1)  # its second token
    submit(scheduler, 0.1, 60)
    ends, iterations = [0], 0
    while scheduler.running < 2:
        chunks = iterate(scheduler, 0.1)
        assert [chunk.start for chunk in chunks] == ends[-1:]
        ends.append(chunks[-1].end)
        iterations += 1
    assert ends[-1] == 60
    assert iterations > 1  # 11 ms of prefill per step of 11 ms are fewer than 60 tokens
    scheduler.remove(first)
    assert scheduler.running == 1


def test_while_nothing_runs_a_prompt_is_prefilled_in_large_chunks() -> None:
    scheduler = FloverScheduler[Schedulable](4, COSTS, prefill_share=1.0)
    submit(scheduler, 0.0, 900)
    assert [[(c.start, c.end) for c in iterate(scheduler, 0.0)] for _ in range(2)] == [[(0, 512)], [(512, 900)]]


def test_a_generation_that_misses_its_deadline_is_refused_and_gets_no_slot() -> None:
    scheduler = FloverScheduler[Schedulable](1, COSTS, prefill_share=1.0)
    submit(scheduler, 0.0, 10)
    iterate(scheduler, 0.0)
    late, patient = submit(scheduler, 0.0, 100, 0.2), submit(scheduler, 0.1, 100)
    assert not scheduler.admit(0.13).refused  # the prefill takes 55 ms
    assert scheduler.admit(0.15).refused == (late,)
    assert next(iter(scheduler)) is patient


def profile(**fields: tuple[object, ...]) -> LatencyProfile:
    return LatencyProfile(threads=1, p95_ms=fields["median_ms"], **fields)


def test_costs_from_a_profile() -> None:
    step = profile(lengths=(64, 128), batches=(1, 4), median_ms=((1, 2), (3, 6)))
    # Chunks of 1 and 65 tokens, behind 0, 100 and 200 tokens.
    chunk = profile(lengths=(1, 101, 201), batches=(1, 65), median_ms=((2, 18), (4, 34), (4,)))
    costs = ProfiledCosts(step, chunk)
    assert costs.decode_seconds(1, 64) == costs.decode_seconds(1, 1) == pytest.approx(0.001)
    assert costs.decode_seconds(4, 64) == costs.decode_seconds(5, 64) == pytest.approx(0.002)
    assert costs.decode_seconds(1, 96) == pytest.approx(0.002)
    assert costs.decode_seconds(4, 128) == costs.decode_seconds(4, 999) == pytest.approx(0.006)
    assert costs.prefill_seconds(0, 1) == pytest.approx(0.002)
    assert costs.prefill_seconds(0, 33) == pytest.approx(0.010)
    assert costs.prefill_seconds(50, 51) == costs.chunk_seconds(50, 51) == pytest.approx(0.003)
    assert costs.prefill_seconds(50, 115) == pytest.approx(0.026)
    assert costs.prefill_seconds(150, 151) == pytest.approx(0.004)
    # Beyond what was measured the cost rises as between the measured points, up to the last position.
    assert costs.prefill_seconds(112, 177) == pytest.approx(0.034 + 12 * 0.00016)
    assert costs.prefill_seconds(200, 201) == costs.prefill_seconds(900, 901) == pytest.approx(0.004)
    # A larger chunk costs as much as its parts.
    assert costs.prefill_seconds(0, 131) == pytest.approx(
        costs.prefill_seconds(0, 65) + costs.prefill_seconds(65, 130) + costs.prefill_seconds(130, 131)
    )


def test_a_chunk_in_a_mixed_pass_costs_what_it_adds_to_the_step() -> None:
    tokens = profile(lengths=(1,), batches=(1, 16, 64), median_ms=((5, 12, 36),))
    step = profile(lengths=(64,), batches=(1,), median_ms=((5,),))
    apart, mixed = (ProfiledCosts(step, tokens, mixed=each) for each in (False, True))
    assert apart.chunk_seconds(0, 64) == apart.prefill_seconds(0, 64) == mixed.prefill_seconds(0, 64)
    assert mixed.chunk_seconds(0, 64) == pytest.approx(0.031)
    assert mixed.chunk_seconds(0, 16) == pytest.approx(0.007)
    assert mixed.chunk_seconds(0, 1) == pytest.approx(0.005 / 17)  # never nothing
    chunks = [mixed.chunk_seconds(0, end) for end in range(1, 65)]
    assert chunks == sorted(chunks)


@given(
    st.lists(st.floats(0.1, 1e3), min_size=12, max_size=12),
    st.integers(0, 4000),
    st.integers(1, 600),
    st.booleans(),
)
def test_costs_never_fall_with_tokens_or_context(times: list[float], start: int, tokens: int, mixed: bool) -> None:
    """Whatever was measured, as measurements are not monotone."""
    rows = tuple(tuple(times[row : row + 4]) for row in (0, 4, 8))
    chunk = profile(lengths=(1, 257, 1000), batches=(1, 16, 64, 256), median_ms=rows)
    costs = ProfiledCosts(profile(lengths=(4096,), batches=(1,), median_ms=((5,),)), chunk, mixed=mixed)
    found = costs.prefill_seconds(start, start + tokens)
    slack = 1e-9 * found
    assert found <= costs.prefill_seconds(start, start + tokens + 1) + slack
    assert found <= costs.prefill_seconds(start + 1, start + tokens + 1) + slack


def test_the_bound_beside_a_step_is_kept_behind_a_long_prompt() -> None:
    """Chunks shrink with the tokens before them, where each token costs more."""
    step = profile(lengths=(8192,), batches=(1,), median_ms=((20,),))
    rows = tuple(
        tuple(5 + 0.2 * tokens * (1 + start / 1000) for tokens in (1, 16, 64, 256)) for start in (0, 2000, 7000)
    )
    costs = ProfiledCosts(step, profile(lengths=(1, 2001, 7001), batches=(1, 16, 64, 256), median_ms=rows))
    scheduler = FloverScheduler[Schedulable](4, costs, prefill_share=1.0)
    submit(scheduler, 0.0, 1)
    iterate(scheduler, 0.0)
    iterate(scheduler, 0.0)
    submit(scheduler, 0.0, 8000)
    sizes = []
    while scheduler.running < 2:
        (chunk,) = iterate(scheduler, 0.0)
        tokens = chunk.end - chunk.start
        assert 5 + 0.2 * tokens * (1 + chunk.start / 1000) <= 20
        sizes.append(tokens)
    assert sizes[0] == 75
    assert sizes[-2] == 8


def test_prompts_are_prefilled_together_while_nothing_runs() -> None:
    scheduler = FloverScheduler[Schedulable](8, COSTS, prefill_share=1.0)
    prompts = [submit(scheduler, 0.0, tokens) for tokens in (100, 400, 500, 600, 10)]
    # By key: the shortest first.
    found = [(each.item, each.start, each.end) for each in iterate(scheduler, 0.0)]
    assert found == [(prompts[4], 0, 10), (prompts[0], 0, 100), (prompts[1], 0, 400)]


def test_prompts_that_arrive_together_are_prefilled_before_the_bound_holds() -> None:
    scheduler = FloverScheduler[Schedulable](40, COSTS, prefill_share=1.0)
    for _ in range(36):
        submit(scheduler, 0.0, 32)
    found = [[chunk.end - chunk.start for chunk in iterate(scheduler, 0.0)] for _ in range(5)]
    assert found[:4] == [[32] * 8] * 4
    assert found[4] == [32, 32, 19]  # 32 generations allow 42 ms of prompts


def test_a_start_ends_with_an_iteration_without_prompts() -> None:
    scheduler = FloverScheduler[Schedulable](4, COSTS, prefill_share=1.0)
    submit(scheduler, 0.0, 32)
    assert [len(iterate(scheduler, 0.0)) for _ in range(2)] == [1, 0]
    submit(scheduler, 0.0, 200)
    (chunk,) = iterate(scheduler, 0.0)
    assert COSTS.prefill_seconds(0, chunk.end) <= COSTS.decode_seconds(1, 32)


def test_a_long_prompt_beside_a_generation_that_has_just_started_keeps_the_bound() -> None:
    scheduler = FloverScheduler[Schedulable](4, COSTS, prefill_share=1.0)
    submit(scheduler, 0.0, 32)
    iterate(scheduler, 0.0)
    submit(scheduler, 0.0, 900)
    (chunk,) = iterate(scheduler, 0.0)
    assert COSTS.prefill_seconds(0, chunk.end) <= COSTS.decode_seconds(1, 32)


def test_a_chunk_beside_more_rows_of_a_pass_costs_more_where_its_weights_were_read_before() -> None:
    tokens = profile(lengths=(1,), batches=(1, 16, 64), median_ms=((5, 6, 30),))
    costs = ProfiledCosts(profile(lengths=(64,), batches=(1,), median_ms=((5,),)), tokens, mixed=True)
    assert costs.chunk_seconds(0, 16, 1) == pytest.approx(max(0.0015, 0.003))
    assert costs.chunk_seconds(0, 16, 16) == pytest.approx(0.008)
    assert costs.chunk_seconds(0, 16, 100) == pytest.approx(0.008)  # beyond the measured rows
