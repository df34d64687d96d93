"""Batches that are started while all engines with one thread run, and wait there for the first that is free."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tests.arlo.manifests import LENGTHS, OUTPUTS, Tokenizer, make_manifest
from tidal.arlo.policies import ArloBatch, ArloQuery, PolymorphicPolicy
from tidal.arlo.service import ArloService
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.profiles import LatencyProfile
from tidal.requests import Array
from tidal.text import TextTokenizer

LONGEST = 256


def profile(ms_per_token: float, *, threads: int, concurrency: int) -> LatencyProfile:
    """Return a profile on which latency is proportional to the length, and a batch gains nothing."""
    lengths = (8, 64, LONGEST)
    grid = tuple(tuple(ms_per_token * length * b for b in (1, 2, 4)) for length in lengths)
    return LatencyProfile(
        lengths=lengths, batches=(1, 2, 4), median_ms=grid, p95_ms=grid, threads=threads, concurrency=concurrency
    )


def make_policy(queued: int, *, concurrency: int = 2) -> PolymorphicPolicy:
    wide = profile(0.08, threads=concurrency, concurrency=1)
    narrow = profile(0.12, threads=1, concurrency=concurrency)
    return PolymorphicPolicy((LONGEST,), wide, narrow, static_upto=0, max_batch=4, queued=queued)


def start_all(policy: PolymorphicPolicy, now: float = 0.0) -> list[ArloBatch]:
    return list(iter(lambda: policy.next_batch(now), None))


def filled(policy: PolymorphicPolicy, length: int = 128, deadline: float | None = None) -> PolymorphicPolicy:
    for _ in range(8):
        policy.submit(ArloQuery(length, 0.0, deadline))
    return policy


def test_one_batch_more_than_engines_is_started_and_replaced_when_one_ends() -> None:
    policy = filled(make_policy(queued=1))
    first, second, third = start_all(policy)
    assert [first.queued, second.queued, third.queued] == [False, False, True]
    assert len({first.lane, second.lane, third.lane}) == 3
    assert policy.max_concurrency == 3
    assert not policy.can_start
    policy.finished(second, 0.015)
    assert policy.can_start
    (after,) = start_all(policy, 0.015)
    assert after.queued
    assert after.lane == second.lane


@pytest.mark.parametrize(
    ("length", "deadline", "queued"),
    [(128, None, 0), (16, None, 1), (128, 5.0, 1)],
    ids=["engines that do not queue", "short queries, which gain by a batch", "a deadline, which may overtake"],
)
def test_no_batch_waits_in_an_engine(length: int, deadline: float | None, queued: int) -> None:
    policy = filled(make_policy(queued), length, deadline)
    for _ in range(3):
        started = start_all(policy)
        assert not any(batch.queued for batch in started)
        assert not policy.can_start
        for batch in started:
            policy.finished(batch, 0.01)


def test_none_waits_for_one_engine_with_all_threads() -> None:
    policy = make_policy(queued=1)
    policy.submit(ArloQuery(128, 0.0))
    (lone,) = start_all(policy)
    assert lone.lane == 0
    policy.submit(ArloQuery(128, 0.001))
    assert start_all(policy, 0.001) == []
    assert not policy.can_start


def simulate(policy: PolymorphicPolicy, queries: list[ArloQuery], contexts: int, idle_s: float) -> list[float]:
    """Return latencies in seconds where a context idles for `idle_s` after each batch unless one waits in the engine.

    Narrow lanes share `contexts`: the first that is free runs the first batch that waits.
    """
    order = itertools.count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    waiting = deque[ArloBatch]()
    running, latencies = 0, list[float]()

    def at(time: float, act: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, next(order), act))

    def run(batch: ArloBatch, now: float) -> None:
        nonlocal running
        running += 1
        seconds = batch.seconds
        at(now + seconds, lambda end: ended(batch, seconds, end))

    def ended(batch: ArloBatch, took: float, now: float) -> None:
        nonlocal running
        running -= 1
        latencies.extend(now - query.arrival for query in batch.queries)
        if waiting:
            run(waiting.popleft(), now)
        at(now + idle_s, lambda later: released(batch, took, later))

    def released(batch: ArloBatch, took: float, now: float) -> None:
        policy.finished(batch, took)
        begin(now)

    def begin(now: float) -> None:
        for batch in start_all(policy, now):
            if running < (contexts if batch.lane else 1):
                run(batch, now)
            else:
                assert batch.queued
                waiting.append(batch)

    def arrived(query: ArloQuery, now: float) -> None:
        policy.submit(query)
        begin(now)

    for query in queries:
        at(query.arrival, lambda now, query=query: arrived(query, now))  # type: ignore[misc]
    while events:
        now, _, act = heapq.heappop(events)
        act(now)
    assert not len(policy)
    assert not waiting
    return latencies


def poisson(rate: float, count: int, seed: int) -> list[ArloQuery]:
    draw = random.Random(seed)
    times = itertools.accumulate(draw.expovariate(rate) for _ in range(count))
    return [ArloQuery(draw.randint(40, LONGEST), time) for time in times]


def test_engines_that_queue_do_not_idle_between_batches() -> None:
    """At 90 % of what two engines can do, each idling for 1 ms after a batch of 18 ms: sooner; else alike."""
    rate = 0.9 * 2 / (0.12e-3 * (40 + LONGEST) / 2)
    gains, same = [], []
    for seed in range(5):
        means = {
            (queued, idle_s): statistics.fmean(simulate(make_policy(queued), poisson(rate, 3000, seed), 2, idle_s))
            for queued in (0, 1)
            for idle_s in (0.0, 1e-3)
        }
        gains.append(means[1, 1e-3] / means[0, 1e-3])
        same.append(means[1, 0.0] / means[0, 0.0])
    assert statistics.median(gains) < 0.9
    assert statistics.median(same) < 1.05


@given(
    lengths=st.lists(st.tuples(st.integers(1, LONGEST), st.floats(0, 0.3)), min_size=1, max_size=60),
    queued=st.integers(0, 3),
    concurrency=st.integers(1, 4),
    idle_ms=st.floats(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_every_query_runs_once(lengths: list[tuple[int, float]], queued: int, concurrency: int, idle_ms: float) -> None:
    queries = [ArloQuery(length, arrival) for length, arrival in lengths]
    policy = make_policy(queued, concurrency=concurrency)
    assert len(simulate(policy, queries, concurrency, idle_ms / 1e3)) == len(queries)


class Engine:
    """Two engines whose runs end when the test lets them, in the order in which they were started."""

    def __init__(self) -> None:
        self.ended: list[threading.Event] = []

    def start(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> Run:
        self.ended.append(threading.Event())
        return Run(self.ended[-1], len(rows))

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        raise AssertionError("it was not started")


class Run:
    """A batch that runs, or waits in the engine."""

    def __init__(self, end: threading.Event, rows: int) -> None:
        self._end = end
        self._rows = rows

    def wait(self, timeout_s: float | None = None) -> dict[str, Array] | None:
        return {"logits": np.zeros((self._rows, 2), np.float32)} if self._end.wait(timeout_s) else None


def test_a_batch_that_waited_in_the_engine_took_as_long_as_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third query waits for 0.3 s in the engine, which the policy must not take for its latency."""
    took: list[float | None] = []
    finished = PolymorphicPolicy.finished

    def recording(self: PolymorphicPolicy, batch: ArloBatch, seconds: float | None = None) -> None:
        took.append(seconds)
        finished(self, batch, seconds)

    monkeypatch.setattr(PolymorphicPolicy, "finished", recording)
    grids = [tuple((ms,) for _ in LENGTHS) for ms in (100.0, 110.0)]
    wide, narrow = (
        LatencyProfile(lengths=LENGTHS, batches=(1,), median_ms=grid, p95_ms=grid, threads=1, concurrency=count)
        for count, grid in enumerate(grids, 1)
    )
    policy = PolymorphicPolicy(LENGTHS, wide, narrow, static_upto=0, max_batch=1, queued=1)
    engine = Engine()
    context = make_context(tmp_path, outputs=OUTPUTS, failures=[])
    service = ArloService(context, make_manifest(), cast(TextTokenizer, Tokenizer()), policy, engine)
    requests = [FakeRequest({"input_ids": np.full((1, 5), 7)}, wanted=OUTPUTS) for _ in range(4)]
    service.submit(requests)
    assert until(lambda: len(engine.ended) == 3)
    assert not until(lambda: len(engine.ended) > 3, seconds=0.3)
    engine.ended[0].set()
    assert until(lambda: len(engine.ended) == 4)  # the last one now waits in the engine
    engine.ended[2].set()
    assert until(lambda: len(took) == 2)
    for end in engine.ended:
        end.set()
    for request in requests:
        request.wait()
    service.close(10)
    first, third = (seconds or 0.0 for seconds in took[:2])
    assert first >= 0.3
    assert 0 < third < first
