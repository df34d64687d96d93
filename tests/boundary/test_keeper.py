"""Restarts of a failed service, and late reports of failures; without Triton."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tests.boundary.running import Running
from tidal.errors import TidalError
from tidal.metrics import Metrics
from tidal.service import ServiceContext
from tidal.triton.keeper import ServiceKeeper, _Failures


class KeeperHarness:
    """A keeper, and the services that it started."""

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


def test_pauses_grow_and_a_long_run_resets_them() -> None:
    failures, pauses = _Failures(), []
    for _ in range(12):
        failures = failures.after_running(0.0)
        pauses.append(round(failures.pause_s, 3))
    assert pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10]
    assert failures.after_running(9.0).pause_s == 10
    assert failures.after_running(11.0).pause_s == 0


def test_a_service_that_fails_is_replaced_and_closed() -> None:
    harness = KeeperHarness()
    harness.services[0].context.failed(ValueError("broken"))
    assert until(lambda: len(harness.services) == 2 and not harness.ask().answered)
    assert harness.services[0].closed.is_set()
    assert [str(error) for error in harness.failed] == ["the model failed: ValueError: broken"]


def test_only_the_first_report_of_a_service_counts() -> None:
    harness = KeeperHarness()
    for _ in range(3):
        harness.services[0].context.failed(ValueError("broken"))
    assert until(lambda: not harness.ask().answered)
    harness.services[0].context.failed(ValueError("late"))
    assert not harness.ask().answered
    assert (len(harness.services), len(harness.failed), harness.restarts) == (2, 1, 1)


def test_a_failure_reported_during_the_start_is_not_forgotten() -> None:
    def on_start(context: ServiceContext) -> None:
        if len(started) == 0:
            started.append(1)
            context.failed(ValueError("a thread ended before the start did"))

    started: list[int] = []
    harness = KeeperHarness(on_start)
    assert until(lambda: len(harness.services) == 2 and not harness.ask().answered)
    assert harness.services[0].closed.is_set()
    assert not harness.services[0].got


def test_requests_submitted_during_a_failure_are_answered() -> None:
    harness = KeeperHarness()
    # Another thread fails during submit, after all open requests were failed.
    harness.services[0].on_submit = lambda: harness.services[0].context.failed(ValueError("broken"))
    error = harness.ask().error
    assert error is not None
    assert str(error) == "the model is restarting after a failure (ValueError: broken); try again"
    assert until(lambda: not harness.ask().answered)
    assert (len(harness.services), harness.restarts) == (2, 1)


def test_a_second_error_of_a_failed_service_starts_nothing() -> None:
    harness = KeeperHarness()
    first = harness.services[0]

    def fail_twice() -> None:
        first.context.failed(ValueError("broken"))
        raise ValueError("and in submit too")

    first.on_submit = fail_twice
    assert harness.ask().answered
    assert until(lambda: not harness.ask().answered)
    assert (len(harness.services), harness.restarts) == (2, 1)


def test_failing_starts_are_retried_with_pauses() -> None:
    def on_start(context: ServiceContext) -> None:
        if len(started) > 0:
            raise RuntimeError("no start")
        started.append(1)

    started: list[int] = []
    harness = KeeperHarness(on_start)
    harness.keeper._current.began -= 1000  # it has run long
    harness.services[0].context.failed(ValueError("broken"))
    assert until(lambda: harness.starts == 4)
    assert harness.keeper._failures.pause_s >= 0.2
    harness.keeper.close(0.0)


def test_closing_during_a_restart_leaves_no_service_running() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def on_start(context: ServiceContext) -> None:
        if len(started) > 0:
            inside.set()
            go_on.wait(10)
        started.append(1)

    started: list[int] = []
    harness = KeeperHarness(on_start)
    harness.services[0].context.failed(ValueError("broken"))
    assert inside.wait(10)
    harness.keeper.close(0.0)
    go_on.set()
    assert harness.services[1].closed.wait(10)
    error = harness.ask().error
    assert error is not None
    assert "unloaded" in str(error)


def test_no_service_is_started_after_closing() -> None:
    harness = KeeperHarness()
    harness.keeper.close(0.0)
    assert harness.services[0].closed.is_set()
    harness.services[0].context.failed(ValueError("broken"))
    assert harness.starts == 1
    assert not harness.failed


def test_a_first_start_that_fails_is_reported() -> None:
    def on_start(context: ServiceContext) -> None:
        raise RuntimeError("no start")

    with pytest.raises(RuntimeError, match="no start"):
        KeeperHarness(on_start)


def _no_threads(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_later_request_retries_a_restart_that_got_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = KeeperHarness()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_threads)
        harness.services[0].context.failed(ValueError("broken"))
        assert [str(error) for error in harness.failed] == ["the model failed: ValueError: broken"]
        assert "restarting after a failure" in str(harness.ask().error)
        assert harness.starts == 1
    assert until(lambda: not harness.ask().answered)
    assert harness.services[0].closed.is_set()
    assert (harness.starts, harness.restarts) == (2, 1)


def test_closing_closes_a_failed_service_that_was_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = KeeperHarness()
    monkeypatch.setattr(threading.Thread, "start", _no_threads)
    harness.services[0].context.failed(ValueError("broken"))
    harness.keeper.close(0.0)
    assert harness.services[0].closed.is_set()
    assert harness.starts == 1
