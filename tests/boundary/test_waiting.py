"""Waiting requests: deadlines, timeouts, a full queue, cancellation by clients."""

from __future__ import annotations

import time

import pytest

from testing.servers import RunningServer
from testing.waiting import until
from tests.boundary.clients import ProbeClient, in_background, outcome, together
from tests.boundary.scraping import value
from tidal_client.errors import RequestError

pytestmark = pytest.mark.server


def test_a_missed_deadline_is_answered_when_it_passes(ask: ProbeClient) -> None:
    # A long deadline first, so that an earlier one has to wake the thread.
    late = in_background(ask, "hold", latency_ms=700)
    time.sleep(0.05)
    took = []
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(RequestError, match="the deadline of 150 ms passed before an answer") as refused:
            ask("hold", latency_ms=150)
        took.append(time.monotonic() - began)
        assert refused.value.code == "UNAVAILABLE"
    # The thread is a few milliseconds late; the best of several tries excludes delays by other processes.
    assert 0.15 <= min(took) < 0.20
    with pytest.raises(RequestError, match="the deadline of 700 ms"):
        late.result(timeout=60)


def test_many_deadlines_are_each_met(ask: ProbeClient) -> None:
    def one(index: int) -> str:
        return outcome(ask, "hold" if index % 2 else "sleep 20", latency_ms=100 + 10 * index if index % 2 else 5000)

    assert together(16, one) == ["UNAVAILABLE" if index % 2 else "OK" for index in range(16)]


def test_an_unanswered_request_times_out(ask: ProbeClient) -> None:
    with pytest.raises(RequestError, match=r"no answer within answer_timeout_s \(0.5 s\)") as refused:
        ask("hold", model="impatient")
    assert refused.value.code == "UNAVAILABLE"
    assert outcome(ask, "reply", model="impatient") == "OK"


def test_a_full_queue_refuses_at_once_and_recovers(server: RunningServer, ask: ProbeClient) -> None:
    held = [in_background(ask, "hold", model="small", latency_ms=3000) for _ in range(3)]
    assert until(lambda: value(server, "tidal_probe_in_flight_queries", "small") == 3)
    with pytest.raises(RequestError, match="the model's queue is full: 3 queries wait or run") as refused:
        ask(["reply", "reply"], model="small")
    assert refused.value.code == "UNAVAILABLE"
    held.append(in_background(ask, "hold", model="small", latency_ms=3000))
    assert until(lambda: value(server, "tidal_probe_in_flight_queries", "small") == 4)
    assert together(20, lambda index: outcome(ask, "reply", model="small", timeout_s=2)) == ["UNAVAILABLE"] * 20
    assert not any(each.done() for each in held)
    assert server.control.live()
    assert outcome(ask, "reply") == "OK"
    for each in held:
        assert isinstance(each.exception(timeout=60), RequestError)
    assert outcome(ask, ["reply"] * 4, model="small") == "OK"


def test_a_cancelled_request_is_seen_by_the_service(ask: ProbeClient, clients: dict[str, ProbeClient]) -> None:
    grpc = clients["grpc"]
    before = int(ask("cancelled")["echo"].item())
    assert outcome(grpc, "until-cancelled", timeout_s=0.3) == "DEADLINE_EXCEEDED"
    assert until(lambda: int(ask("cancelled")["echo"].item()) == before + 1)
