"""The service with a fake engine that has two lanes of one thread each, which are held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testing.requests import TextRequest
from testing.waiting import until
from tests.pets.policies.costs import measure_wide
from tests.pets.served.serving import Running, ask, running, texts
from tidal.errors import Cancelled, Internal, TidalError, Unavailable


class Held:
    """Holds every batch until it is released; a batch whose number is in `fails` then raises."""

    def __init__(self) -> None:
        self.entered: dict[int, threading.Event] = {number: threading.Event() for number in range(100)}
        self.leave: dict[int, threading.Event] = {number: threading.Event() for number in range(100)}
        self.fails: dict[int, BaseException] = {}

    def __call__(self, number: int) -> None:
        self.entered[number].set()
        assert self.leave[number].wait(20)
        if number in self.fails:
            raise self.fails[number]

    def release(self) -> None:
        for event in self.leave.values():
            event.set()


@contextmanager
def two_lanes(folder: Path, *, merged_copies: int = 0) -> Iterator[tuple[Running, Held]]:
    """A service that always selects its narrow lanes, both of which run a held query."""
    with running(folder, narrow=2, merged_copies=merged_copies) as run:
        run.tasks.add("t", 2)
        held = Held()
        run.engine.before = held
        measure_wide(run.schedulers[0].lanes, 1e6)
        try:
            for number in range(2):
                run.ask(ask("t", *texts(3 + number)))
                assert held.entered[number].wait(10)
            yield run, held
        finally:
            held.release()


def answers(request: TextRequest) -> tuple[int, ...]:
    return tuple(request.wait()["logits"].shape)


def test_two_batches_run_at_once_and_a_third_waits(tmp_path: Path) -> None:
    with two_lanes(tmp_path) as (run, held):
        assert run.counts("busy_lanes", 2)
        third = ask("t", *texts(8))
        run.ask(third)
        assert run.counts("waiting_queries", 1)
        assert sorted(run.engine.used) == [1, 2]
        held.leave[1].set()  # the second one overtakes the first
        assert answers(run.open[1]) == (1, 2)
        assert held.entered[2].wait(10)
        assert run.engine.used[2] == run.engine.used[1]
        assert run.open[0].answers == third.answers == 0
        held.leave[2].set()
        assert answers(third) == (1, 2)
        held.leave[0].set()
        assert answers(run.open[0]) == (1, 2)
        assert run.counts("busy_lanes", 0)
        assert run.counts("lane_batches_total", 3, mode="narrow")
        assert run.metric("lane_batches_total", mode="wide") == 0


def test_a_lone_query_runs_on_all_threads(tmp_path: Path) -> None:
    with running(tmp_path, narrow=2) as run:
        run.tasks.add("t", 2)
        run.ask(ask("t", "a"))
        assert answers(run.open[0]) == (1, 2)
        assert run.engine.used == []
        assert run.counts("lane_batches_total", 1, mode="wide")


def test_the_failure_of_one_lane_fails_its_batch_only(tmp_path: Path) -> None:
    with two_lanes(tmp_path) as (run, held):
        held.fails[0] = RuntimeError("no memory")
        held.leave[0].set()
        with pytest.raises(Internal, match="the engine failed: no memory"):
            run.open[0].wait()
        assert run.open[1].answers == 0
        third = ask("t", *texts(8))
        run.ask(third)
        assert held.entered[2].wait(10)  # on the lane that failed
        held.release()
        assert [answers(request) for request in (run.open[1], third)] == [(1, 2)] * 2
        assert run.metric("service_restarts_total") == 0


def test_a_cancelled_query_runs_on_no_lane(tmp_path: Path) -> None:
    with two_lanes(tmp_path) as (run, held):
        gone, other = ask("t", *texts(8)), ask("t", *texts(8))
        run.ask(gone, other)
        assert run.counts("waiting_queries", 2)
        gone.withdrawn = True
        assert until(lambda: time.monotonic() > gone.arrival + 0.1)  # it is not asked about before
        held.release()
        with pytest.raises(Cancelled):
            gone.wait()
        assert answers(other) == (1, 2)
        assert sum(map(len, run.engine.batches)) == 3


def test_a_query_that_became_late_behind_two_busy_lanes_is_not_run(tmp_path: Path) -> None:
    with two_lanes(tmp_path) as (run, held):
        late = ask("t", *texts(8), latency_ms=30)
        run.ask(late)
        assert run.counts("waiting_queries", 1)
        assert until(lambda: bool(run.schedulers[0]._latest) and run.schedulers[0]._latest[0][0] < time.monotonic())
        held.release()
        with pytest.raises(Unavailable, match="deadline of 30 ms cannot be met"):
            late.wait()
        assert len(run.engine.batches) == 2


def test_a_stopping_service_answers_what_runs_and_what_waits(tmp_path: Path) -> None:
    with two_lanes(tmp_path) as (run, held):
        requests = [ask("t", *texts(5, 9)) for _ in range(6)]
        run.ask(*requests)
        assert run.counts("waiting_queries", 12)
        closing = threading.Thread(target=run.keeper.close, args=(10,))
        closing.start()
        held.release()
        closing.join(20)
        assert [answers(request) for request in run.open] == [(1, 2)] * 2 + [(2, 2)] * 6


def test_after_a_runner_died_the_service_restarts_while_the_other_lane_is_held(tmp_path: Path) -> None:
    with two_lanes(tmp_path) as (run, held):
        held.fails[0] = SystemExit("a thread ends")
        held.leave[0].set()
        for request in run.open:
            with pytest.raises(TidalError, match="a thread ends"):
                request.wait()
        assert run.counts("service_restarts_total", 1)
        held.release()

        def serves() -> bool:
            request = ask("t", "a")
            run.ask(request)
            try:
                return answers(request) == (1, 2)
            except Unavailable:  # it is still starting
                return False

        assert until(serves)
