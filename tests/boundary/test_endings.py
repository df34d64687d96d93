"""Unload, SIGTERM and SIGKILL with requests in flight: they are answered, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.boundary.clients import (
    BACKENDS,
    PROTOCOLS,
    ProbeClient,
    connected,
    holds,
    in_background,
    outcome,
    write_model,
)
from tests.boundary.scraping import value
from tidal_client.errors import RequestError

pytestmark = pytest.mark.server


def test_an_unload_answers_requests_in_flight(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str, tmp_path: Path
) -> None:
    (pid,) = server.stub_pids(fresh)
    action = f"until-file {tmp_path / 'go_on'}"
    answers = [in_background(ask, action, model=fresh) for ask in clients.values() for _ in range(4)]
    assert holds(clients["grpc"], 8, fresh)
    unload = in_background(server.control.unload, fresh)
    assert until(lambda: not server.serves(fresh))
    assert not any(each.done() for each in answers)
    (tmp_path / "go_on").touch()
    assert [each.result(timeout=60)["echo"].item() for each in answers] == [action.encode()] * 8
    unload.result(timeout=60)
    assert [outcome(ask, "reply", model=fresh) for ask in clients.values()] == ["UNAVAILABLE"] * 2
    assert until(lambda: not psutil.pid_exists(pid))
    # The last metrics are published at the end.
    assert value(server, "tidal_probe_requests_total", fresh, code="OK") >= 8
    assert value(server, "tidal_probe_in_flight_queries", fresh) == 0


def test_an_unload_ends_while_the_service_holds_answered_requests(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str
) -> None:
    (pid,) = server.stub_pids(fresh)
    for ask in clients.values():
        assert outcome(ask, "hold", model=fresh, latency_ms=50) == "UNAVAILABLE"
    server.control.unload(fresh)
    assert until(lambda: not psutil.pid_exists(pid))


def test_sigterm_answers_requests_in_flight(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "probe")
    with running_server(tmp_path / "models", extra_backends=BACKENDS) as running:
        with connected(running, *PROTOCOLS) as clients:
            answers = [in_background(ask, "sleep 2000") for ask in clients for _ in range(4)]
            refusals = [in_background(ask, "hold", latency_ms=2500) for ask in clients]
            assert holds(clients[0], 10)
            assert running.shared_memory()
            os.kill(running.pid, signal.SIGTERM)
            assert [each.result(timeout=60)["echo"].item() for each in answers] == [b"sleep 2000"] * 8
            for each in refusals:
                error = each.exception(timeout=60)
                assert isinstance(error, RequestError)
                assert "the deadline of 2500 ms" in str(error)
        assert until(lambda: running.process.exit_status() is not None)
        assert running.process.exit_status() == 0
        assert until(lambda: not running.processes())
        assert running.shared_memory() == {}


def test_a_killed_stub_does_not_affect_other_models(tmp_path: Path) -> None:
    write_model(tmp_path, "probe")
    write_model(tmp_path, "victim")
    running_for = running_server(tmp_path, extra_backends=BACKENDS, exit_timeout_s=0)
    with running_for as running, connected(running, *PROTOCOLS) as clients:
        for ask in clients:
            _kill_the_victim(running, ask)


def _kill_the_victim(running: RunningServer, ask: ProbeClient) -> None:
    (pid,) = running.stub_pids("victim")
    assert ask("process", model="victim")["echo"].item() == str(pid).encode()
    beside = in_background(ask, f"until-file {running.repository / 'go_on'}")
    lost = in_background(ask, "hold", model="victim", timeout_s=4)
    assert holds(ask, 1, "victim")
    os.kill(pid, signal.SIGKILL)
    for index in range(50):
        assert ask(f"reply {index}")["echo"].item() == f"reply {index}".encode()
    assert not beside.done()
    (running.repository / "go_on").touch()
    assert beside.result(timeout=60)["rows"].item() == 1
    (running.repository / "go_on").unlink()
    # A killed process cannot answer: the client's timeout ends the request.
    assert isinstance(lost.exception(timeout=60), RequestError)
    assert outcome(ask, "reply", model="victim", timeout_s=20) == "UNAVAILABLE"
    running.control.unload("victim")
    running.control.load("victim", None)
    assert outcome(ask, "reply", model="victim", timeout_s=20) == "OK"
    assert until(lambda: value(running, "tidal_probe_in_flight_queries", "victim") == 0)
