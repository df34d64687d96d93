"""Which service runs, and what becomes of late reports; without Triton."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tidal.errors import TidalError
from tidal.metrics import Metrics
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.triton.keeper import ServiceKeeper, _Failures


class Running:
    """A service that does what the test says."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self.closed = threading.Event()
        self.got: list[PendingRequest] = []
        self.on_submit: Callable[[], None] = lambda: None

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        self.on_submit()
        self.got.extend(requests)

    def close(self, timeout_s: float) -> None:
        self.closed.set()


class World:
    """A keeper with all the services that it started."""

    def __init__(self, on_start: Callable[[ServiceContext], None] = lambda context: None) -> None:
        self.services: list[Running] = []
        self.failed: list[TidalError] = []
        self.on_start = on_start
        self.starts = 0
        self.metrics = Metrics("test")
        context = make_context(Path(), self.metrics, failures=[])
        self.keeper = ServiceKeeper(context, self._start, self.failed.append)

    @property
    def restarts(self) -> float:
        return self.metrics.counter("service_restarts_total", "").value

    def _start(self, context: ServiceContext) -> Running:
        self.starts += 1
        service = Running(context)
        self.services.append(service)
        self.on_start(context)
        return service

    def ask(self) -> FakeRequest:
        request = FakeRequest({})
        self.keeper.submit([request])
        return request


def test_pauses_grow_and_a_long_run_ends_them() -> None:
    failures, pauses = _Failures(), []
    for _ in range(12):
        failures = failures.after_running(0.0)
        pauses.append(round(failures.pause_s, 3))
    assert pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10]
    assert failures.after_running(9.0).pause_s == 10
    assert failures.after_running(11.0).pause_s == 0


def test_a_service_that_fails_is_replaced_and_closed() -> None:
    world = World()
    world.services[0].context.failed(ValueError("broken"))
    assert until(lambda: len(world.services) == 2 and not world.ask().answered)
    assert world.services[0].closed.is_set()
    assert [str(error) for error in world.failed] == ["the model failed: ValueError: broken"]


def test_only_the_first_report_of_a_service_counts() -> None:
    world = World()
    for _ in range(3):
        world.services[0].context.failed(ValueError("broken"))
    assert until(lambda: not world.ask().answered)
    world.services[0].context.failed(ValueError("late"))
    assert not world.ask().answered
    assert (len(world.services), len(world.failed), world.restarts) == (2, 1, 1)


def test_a_failure_reported_during_the_start_is_not_forgotten() -> None:
    def on_start(context: ServiceContext) -> None:
        if len(world_services) == 0:
            world_services.append(1)
            context.failed(ValueError("a thread ended before the start did"))

    world_services: list[int] = []
    world = World(on_start)
    assert until(lambda: len(world.services) == 2 and not world.ask().answered)
    assert world.services[0].closed.is_set()
    assert not world.services[0].got


def test_requests_handed_to_a_service_as_it_fails_are_answered() -> None:
    world = World()
    # Another thread's failure in the middle of submit, after everything open was failed.
    world.services[0].on_submit = lambda: world.services[0].context.failed(ValueError("broken"))
    error = world.ask().error
    assert error is not None
    assert str(error) == "the model is restarting after a failure (ValueError: broken); try again"
    assert until(lambda: not world.ask().answered)
    assert (len(world.services), world.restarts) == (2, 1)


def test_an_error_of_a_service_that_failed_already_starts_nothing() -> None:
    world = World()
    first = world.services[0]

    def fail_twice() -> None:
        first.context.failed(ValueError("broken"))
        raise ValueError("and in submit too")

    first.on_submit = fail_twice
    assert world.ask().answered
    assert until(lambda: not world.ask().answered)
    assert (len(world.services), world.restarts) == (2, 1)


def test_starts_that_fail_do_not_come_in_a_rush() -> None:
    def on_start(context: ServiceContext) -> None:
        if len(world_up) > 0:
            raise RuntimeError("no start")
        world_up.append(1)

    world_up: list[int] = []
    world = World(on_start)
    world.keeper._current.began -= 1000  # it has run long
    world.services[0].context.failed(ValueError("broken"))
    assert until(lambda: world.starts == 4)
    assert world.keeper._failures.pause_s >= 0.2
    world.keeper.close(0.0)


def test_the_end_during_a_restart_leaves_no_service_running() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def on_start(context: ServiceContext) -> None:
        if len(world_up) > 0:
            inside.set()
            go_on.wait(10)
        world_up.append(1)

    world_up: list[int] = []
    world = World(on_start)
    world.services[0].context.failed(ValueError("broken"))
    assert inside.wait(10)
    world.keeper.close(0.0)
    go_on.set()
    assert world.services[1].closed.wait(10)
    error = world.ask().error
    assert error is not None
    assert "unloaded" in str(error)


def test_no_service_is_started_after_the_end() -> None:
    world = World()
    world.keeper.close(0.0)
    assert world.services[0].closed.is_set()
    world.services[0].context.failed(ValueError("broken"))
    assert world.starts == 1
    assert not world.failed


def test_a_first_start_that_fails_is_reported() -> None:
    def on_start(context: ServiceContext) -> None:
        raise RuntimeError("no start")

    with pytest.raises(RuntimeError, match="no start"):
        World(on_start)


def _no_threads(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_restart_without_a_thread_is_begun_by_a_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_threads)
        world.services[0].context.failed(ValueError("broken"))
        assert [str(error) for error in world.failed] == ["the model failed: ValueError: broken"]
        assert "restarting after a failure" in str(world.ask().error)
        assert world.starts == 1
    assert until(lambda: not world.ask().answered)
    assert world.services[0].closed.is_set()
    assert (world.starts, world.restarts) == (2, 1)


def test_the_end_closes_a_failed_service_whose_restart_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(threading.Thread, "start", _no_threads)
    world.services[0].context.failed(ValueError("broken"))
    world.keeper.close(0.0)
    assert world.services[0].closed.is_set()
    assert world.starts == 1
