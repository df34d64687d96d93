"""Retries of a request by its error, its retries, its timeout and its deadline; without a server."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal_client import retrying
from tidal_client.codec import InferRequest
from tidal_client.errors import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RequestError,
    ServerError,
    Unavailable,
    Unsupported,
)
from tidal_client.retrying import Attempts, pause_s, stream_with_retries, with_retries

REQUEST = InferRequest("m", {}, None, {"latency_ms": 1000.0, "task": "a"}, "")


class Clock:
    """A fake clock that only pauses advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 100.0, list[float]()
        monkeypatch.setattr(retrying.time, "sleep", self.sleep)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@given(st.integers(0, 40), st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_5_s_and_differ_by_up_to_a_half(attempt: int, jitter: float) -> None:
    longest = min(5.0, 0.2 * 2**attempt)
    assert longest / 2 <= pause_s(attempt, jitter) <= longest


def test_a_call_is_retried_until_it_succeeds_or_retries_are_exhausted(clock: Clock) -> None:
    outcomes: list[Exception | str] = [Unavailable("1"), ConnectionFailed("2"), "answer"]

    def call() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert with_retries(Attempts(2, 60, clock=clock), call) == "answer"
    assert len(clock.pauses) == 2
    outcomes[:] = [Unavailable("1"), Unavailable("2"), Unavailable("3"), "answer"]
    with pytest.raises(Unavailable, match="3"):
        with_retries(Attempts(2, 60, clock=clock), call)
    outcomes[:] = [Unavailable("1"), "answer"]
    with pytest.raises(Unavailable, match="1"):
        with_retries(Attempts(0, 60, clock=clock), call)


@pytest.mark.parametrize("kind", [Cancelled, DeadlineExceeded, InvalidArgument, NotFound, ServerError, Unsupported])
def test_other_errors_are_raised_at_once(clock: Clock, kind: type[RequestError]) -> None:
    with pytest.raises(kind):
        Attempts(5, 60, clock=clock).pause_s(kind("x"))


@pytest.mark.parametrize(("timeout_s", "latency_ms"), [(3.0, None), (60.0, 3000.0), (3.0, 60_000.0)])
def test_the_last_attempt_begins_within_timeout_and_deadline(
    clock: Clock, timeout_s: float, latency_ms: float | None
) -> None:
    tries = Attempts(1000, timeout_s, latency_ms, clock)
    left = list[float]()

    def refused() -> None:
        left.append(tries.left_s)
        raise Unavailable("x")

    with pytest.raises(Unavailable):
        with_retries(tries, refused)
    assert clock.now < 103
    assert len(clock.pauses) >= 2
    elapsed = np.cumsum([0, *clock.pauses])
    np.testing.assert_allclose(left, timeout_s - elapsed)


def test_later_attempts_get_the_remaining_deadline(clock: Clock) -> None:
    tries = Attempts(5, 60, 1000.0, clock)
    assert tries.request(REQUEST) is REQUEST
    clock.sleep(tries.pause_s(Unavailable("x")))
    later = tries.request(REQUEST)
    assert later.parameters["task"] == "a"
    assert later.parameters["latency_ms"] == pytest.approx(1000 * (1 - clock.pauses[0]))
    assert tries.left_s == pytest.approx(60 - clock.pauses[0])
    without = Attempts(5, 60, None, clock)
    clock.sleep(without.pause_s(Unavailable("x")))
    assert without.request(REQUEST) is REQUEST


def test_a_stream_is_retried_until_its_first_item(clock: Clock) -> None:
    starts: list[list[int | RequestError]] = [[Unavailable("1")], [1, 2, Unavailable("2")], [3]]

    def start(_request: InferRequest) -> Generator[int, None, None]:
        for item in starts.pop(0):
            if isinstance(item, RequestError):
                raise item
            yield item

    found: list[int] = []
    with pytest.raises(Unavailable, match="2"):
        found.extend(stream_with_retries(Attempts(5, 60, clock=clock), REQUEST, start))
    tried = stream_with_retries(Attempts(5, 60, clock=clock), REQUEST, start)
    assert list(tried) == [3]
    assert len(clock.pauses) == 1


def test_a_model_that_one_server_has_not_loaded_is_asked_for_at_the_others(clock: Clock) -> None:
    missing = NotFound("[request id: 7] Request for unknown model: 'm' is not found")
    tries = Attempts(0, 60, clock=clock)  # these are no retries
    tries.moves = 2
    assert [tries.pause_s(missing), tries.pause_s(missing)] == [0.0, 0.0]
    with pytest.raises(NotFound):  # at none of them
        tries.pause_s(missing)
    lone = Attempts(5, 60, clock=clock)
    with pytest.raises(NotFound):
        lone.pause_s(missing)
    other = Attempts(5, 60, clock=clock)
    other.moves = 2
    with pytest.raises(NotFound):  # an answer of a model
        other.pause_s(NotFound("there is no task 'x'"))


def failed(*, reached: bool) -> ConnectionFailed:
    error = ConnectionFailed("x")
    error.reached = reached
    return error


def test_other_addresses_are_tried_at_once_and_without_retries(clock: Clock) -> None:
    """After each address that was not reached, and once after a connection that broke."""
    tries = Attempts(0, 60, 1000.0, clock)
    tries.moves = 3
    assert tries.pause_s(failed(reached=False)) == 0
    clock.now += 0.25
    assert tries.pause_s(failed(reached=True)) == 0
    assert tries.left_s == pytest.approx(59.75)
    assert tries.request(REQUEST).parameters["latency_ms"] == pytest.approx(750)
    with pytest.raises(ConnectionFailed):
        tries.pause_s(failed(reached=True))
    assert tries.pause_s(failed(reached=False)) == 0
    with pytest.raises(ConnectionFailed):
        tries.pause_s(failed(reached=False))


def test_a_refusal_needs_a_retry_but_no_pause_for_another_address(clock: Clock) -> None:
    tries = Attempts(2, 60, clock=clock)
    tries.moves = 1
    assert tries.pause_s(Unavailable("x")) == 0
    assert 0.2 <= tries.pause_s(Unavailable("x")) <= 0.4
    with pytest.raises(Unavailable):
        tries.pause_s(Unavailable("x"))
    without = Attempts(0, 60, clock=clock)
    without.moves = 1
    with pytest.raises(Unavailable):
        without.pause_s(Unavailable("x"))


@pytest.mark.parametrize("limit", [(1.0, None), (60.0, 1000.0)])
def test_no_address_is_tried_after_the_timeout_or_the_deadline(clock: Clock, limit: tuple[float, float | None]) -> None:
    tries = Attempts(0, *limit, clock)
    tries.moves = 1
    clock.now += 1
    with pytest.raises(ConnectionFailed):
        tries.pause_s(failed(reached=False))
