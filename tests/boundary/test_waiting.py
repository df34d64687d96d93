"""Waiting requests: deadlines, timeouts, a full queue, cancellation by clients."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from testing.servers import RunningServer
from testing.waiting import until
from tests.boundary.clients import ProbeClient, holds, in_background, outcome, together
from tidal_client.errors import RequestError

pytestmark = pytest.mark.server


def test_a_missed_deadline_is_answered_when_it_passes(ask: ProbeClient) -> None:
    # A long deadline first, so that an earlier one has to wake the thread.
    before = int(ask("open")["echo"].item())
    late = in_background(ask, "hold", latency_ms=5000)
    assert holds(ask, before + 1)
    began = time.monotonic()
    with pytest.raises(RequestError, match="the deadline of 50 ms passed before an answer") as refused:
        ask("hold", latency_ms=50)
    assert refused.value.code == "UNAVAILABLE"
    assert time.monotonic() - began >= 0.05
    assert not late.done()
    with pytest.raises(RequestError, match="the deadline of 5000 ms"):
        late.result(timeout=60)


def test_many_deadlines_are_each_met(ask: ProbeClient) -> None:
    def one(index: int) -> str:
        return outcome(ask, "hold" if index % 2 else "sleep 20", latency_ms=100 + 10 * index if index % 2 else 5000)

    assert together(16, one) == ["UNAVAILABLE" if index % 2 else "OK" for index in range(16)]


def test_an_unanswered_request_times_out(ask: ProbeClient) -> None:
    with pytest.raises(RequestError, match=r"no answer within answer_timeout_s \(0.5 s\)") as refused:
        ask("hold", model="impatient")
    assert refused.value.code == "UNAVAILABLE"
    assert until(lambda: outcome(ask, "reply", model="impatient") == "OK")  # 0.5 s may pass on a busy machine


def test_a_full_queue_refuses_at_once_and_recovers(server: RunningServer, ask: ProbeClient, tmp_path: Path) -> None:
    action = f"until-file {tmp_path / 'go_on'}"
    held = [in_background(ask, action, model="small") for _ in range(3)]
    assert holds(ask, 3, "small")
    with pytest.raises(RequestError, match="the model's queue is full: 3 queries wait or run") as refused:
        ask(["reply", "reply"], model="small")
    assert refused.value.code == "UNAVAILABLE"
    last = in_background(ask, action, model="small")

    def full() -> bool:
        nonlocal last
        if last.done():  # refused, because the request below had the last place in the queue
            last = in_background(ask, action, model="small")
        return outcome(ask, "reply", model="small") == "UNAVAILABLE"

    assert until(full)
    held.append(last)
    assert together(20, lambda index: outcome(ask, "reply", model="small", timeout_s=20)) == ["UNAVAILABLE"] * 20
    assert not any(each.done() for each in held)
    assert server.control.live()
    assert outcome(ask, "reply") == "OK"
    (tmp_path / "go_on").touch()
    for each in held:
        assert each.result(timeout=60)["rows"].item() == 1
    assert outcome(ask, ["reply"] * 4, model="small") == "OK"


def test_a_cancelled_request_is_seen_by_the_service(ask: ProbeClient, clients: dict[str, ProbeClient]) -> None:
    grpc = clients["grpc"]
    before = int(ask("cancelled")["echo"].item())
    assert outcome(grpc, "until-cancelled", timeout_s=1.5) == "DEADLINE_EXCEEDED"
    assert until(lambda: int(ask("cancelled")["echo"].item()) == before + 1)
