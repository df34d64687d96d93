"""Readiness evaluated from polls of a server, and responses to probes; without a server."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.waiting import until
from tidal.errors import InvalidArgument, Unavailable
from tidal.server import status_endpoint as module
from tidal.server.control import ModelState
from tidal.server.endpoints import choose_endpoints, with_status
from tidal.server.model_report import FRESH_S, ModelReport
from tidal.server.readiness import ModelReadiness, ReadinessObservation, WantedModels, evaluate
from tidal.server.status import HUNG_S, SILENT_S, ServeStatus
from tidal.server.status_endpoint import read_readiness, status_endpoint

BROKEN = "Internal: ModuleNotFoundError: No module named 'x'"
UP = [ModelState("m", 1, "READY", "")]
FAILED_NEXT = [*UP, ModelState("m", 2, "UNAVAILABLE", BROKEN)]
GONE = [ModelState("m", 1, "UNAVAILABLE", "unloaded")]
LEAVING = [ModelState("m", 1, "UNLOADING", "")]
LOADING = [ModelState("m", 1, "LOADING", "")]
GONE_AND_BROKEN = [*GONE, ModelState("m", 2, "UNAVAILABLE", BROKEN)]
NEVER = [ModelState("m", 1, "UNAVAILABLE", BROKEN)]
RESTARTING = {"m": "restarting it"}


def after(*polls: ReadinessObservation, memory: WantedModels | None = None) -> ModelReadiness:
    """Readiness of `m` after some polls."""
    memory = memory or WantedModels()
    for poll in polls:
        report, memory = evaluate(memory, poll)
    return report["m"]


def test_a_model_that_serves_is_wanted_and_ready() -> None:
    assert after(ReadinessObservation(UP)) == ModelReadiness(ready=True, wanted=True, versions=(1,))


def test_a_version_that_does_not_load_leaves_the_model_ready() -> None:
    readiness = after(ReadinessObservation(UP), ReadinessObservation(FAILED_NEXT))
    assert (readiness.ready, readiness.versions) == (True, (1,))
    assert readiness.reason == "version 2 does not load: ModuleNotFoundError: No module named 'x'"


def test_an_unloaded_model_is_not_wanted() -> None:
    for gone in (GONE, LEAVING, GONE_AND_BROKEN, []):
        _, memory = evaluate(WantedModels(), ReadinessObservation(UP))
        readiness = evaluate(memory, ReadinessObservation(gone))[0].get("m")
        assert readiness is None or (readiness.ready, readiness.wanted) == (False, False), gone


def test_a_model_loaded_again_is_wanted_again() -> None:
    assert after(ReadinessObservation(UP), ReadinessObservation(GONE), ReadinessObservation(LOADING)).wanted is False
    assert (
        after(
            ReadinessObservation(UP),
            ReadinessObservation(GONE),
            ReadinessObservation(LOADING),
            ReadinessObservation(UP),
        ).wanted
        is True
    )


def test_a_restart_of_its_process_makes_a_model_not_ready_and_keeps_it_wanted() -> None:
    for during in (UP, LEAVING, GONE, LOADING):
        assert after(ReadinessObservation(UP), ReadinessObservation(during, RESTARTING)) == ModelReadiness(
            False, True, (1,) if during is UP else (), "restarting it"
        )
    assert after(
        ReadinessObservation(UP),
        ReadinessObservation(GONE, RESTARTING),
        ReadinessObservation(LOADING),
        ReadinessObservation(UP),
    ).ready


@pytest.mark.parametrize("seen", [True, False])
def test_a_restart_that_failed_keeps_the_model_wanted(seen: bool) -> None:
    """Even without a poll during the restart, so that the model looks unloaded."""
    during = [ReadinessObservation(GONE, RESTARTING)] if seen else []
    readiness = after(
        ReadinessObservation(UP),
        *during,
        ReadinessObservation(GONE_AND_BROKEN, unrecovered={"m": "it does not load again"}),
    )
    assert readiness == ModelReadiness(False, True, (), "it does not load again")


def test_a_model_that_did_not_load_at_the_start_is_not_wanted_before_it_serves() -> None:
    memory = WantedModels(failed={"m": "no memory"})
    assert after(ReadinessObservation(NEVER), memory=memory) == ModelReadiness(False, False, (), "no memory")
    assert after(ReadinessObservation([]), memory=memory) == ModelReadiness(False, False, (), "no memory")
    assert (
        after(ReadinessObservation(NEVER), ReadinessObservation(UP), ReadinessObservation(GONE), memory=memory).reason
        == "unloaded"
    )


def test_a_model_stays_wanted_when_tritonserver_is_started_again() -> None:
    _, memory = evaluate(WantedModels(), ReadinessObservation([*UP, ModelState("other", 1, "READY", "")]))
    again = memory.on_new_server(["m"], {"m": "no memory"})
    report, _ = evaluate(again, ReadinessObservation(NEVER))
    assert report == {"m": ModelReadiness(False, True, (), "no memory")}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_is_ready_while_all_wanted_models_answer() -> None:
    status = ServeStatus(Clock())
    assert not status.ready()[0]
    status.serving({"m": ModelReadiness(True, True, (1,)), "n": ModelReadiness(False, False, (), "unloaded")})
    assert status.ready()[0]
    status.observed({"m": ModelReadiness(True, True, (1,)), "n": ModelReadiness(False, True, (), "loading")})
    ready, document = status.ready()
    assert (ready, document["reason"], document["not_ready"]) == (False, "model 'n': loading", {"n": "loading"})
    assert document["models"]["m"] == {"ready": True, "wanted": True, "versions": (1,), "reason": None}


def test_a_tritonserver_that_does_not_answer_is_not_ready_and_later_not_live() -> None:
    status = ServeStatus(clock := Clock())
    status.serving({})
    for silent_s, ready, live in ((SILENT_S - 1, True, True), (SILENT_S, False, True), (HUNG_S, False, False)):
        clock.now = silent_s
        assert (status.ready()[0], status.live()[0]) == (ready, live)
    status.observed({})
    assert status.ready()[0]
    assert status.live()[0]


def test_a_restart_is_not_ready_and_live_however_long_it_takes() -> None:
    status = ServeStatus(clock := Clock())
    status.serving({"m": ModelReadiness(True, True, (1,))})
    status.restarting("it ended")
    clock.now = HUNG_S
    status.observed({"m": ModelReadiness(True, True, (1,))})  # a late answer of the ended process
    ready, document = status.ready()
    assert (ready, document["state"], document["reason"]) == (False, "restarting", "it ended")
    assert document["models"]["m"]["ready"] is False
    assert status.live()[0]
    status.serving({"m": ModelReadiness(True, True, (1,))})
    assert status.ready()[0]


def test_is_not_ready_during_shutdown() -> None:
    status = ServeStatus(clock := Clock())
    status.serving({"m": ModelReadiness(True, True, (1,))})
    status.ending()
    clock.now = HUNG_S
    assert (status.ready()[0], status.ready()[1]["state"], status.live()[0]) == (False, "ending", True)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ServeStatus, str]]:
    monkeypatch.setattr(module._Handler, "timeout", 0.3)
    endpoints = with_status(choose_endpoints("127.0.0.1", 0, 0, 0), None, 0)
    with status_endpoint(endpoints.status_host, endpoints.status, status := ServeStatus(), ModelReport(tmp_path, 1)):
        yield status, endpoints.status_address


def ask(address: str, path: str, method: str = "GET") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", method=method), timeout=10) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_endpoint_answers_by_status_code(endpoint: tuple[ServeStatus, str]) -> None:
    status, address = endpoint
    assert [ask(address, path)[0] for path in ("/ready", "/live", "/models", "/nothing")] == [503, 200, 200, 404]
    status.serving({"m": ModelReadiness(True, True, (1,))})
    assert ask(address, "/ready?verbose=1")[0] == 200
    assert ask(address, "/ready", "HEAD") == (200, b"")
    assert json.loads(ask(address, "/models")[1]) == {"metrics_port": 1, "models": {"m": {"tasks": {}}}}
    assert ask(address, "/ready", "POST")[0] == 501
    document = read_readiness(address)
    assert document is not None
    assert document["models"]["m"]["versions"] == [1]
    assert read_readiness("127.0.0.1:1") is None


def test_models_are_read_from_the_repository_when_they_are_old(tmp_path: Path) -> None:
    def publish(name: str, *tasks: str) -> None:
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text('backend: "pets"')
        for task in tasks:
            (tmp_path / name / "tasks" / task).mkdir(parents=True)
            for file in ("task.json", "task.safetensors"):
                (tmp_path / name / "tasks" / task / file).write_text("{}")

    publish("encoder", "mood", "topic")
    report = ModelReport(tmp_path, 8002, clock := Clock())
    facts = report.document({})["models"]["encoder"]
    assert (facts["backend"], facts["engine"]) == ("pets", None)
    assert report.document({})["metrics_port"] == 8002
    publish("other")
    assert list(report.document({})["models"]) == ["encoder"]
    clock.now += FRESH_S + 1
    assert list(report.document({})["models"]) == ["encoder", "other"]


def test_the_endpoint_answers_while_connections_are_held_open(endpoint: tuple[ServeStatus, str]) -> None:
    """Idle connections are closed after a timeout, those beyond a limit at once."""
    _, address = endpoint
    host, _, port = address.partition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        assert until(lambda: (read_readiness(address) or {}).get("state") == "starting")
    finally:
        for each in held:
            each.close()
    assert threading.active_count() < 90


def test_the_address_of_the_endpoint_is_checked(endpoint: tuple[ServeStatus, str]) -> None:
    ports = choose_endpoints("127.0.0.1", 0, 0, 0)
    taken = int(endpoint[1].partition(":")[2])
    with pytest.raises(Unavailable, match=rf"status port {taken} is in use by .*choose another with --status-port"):
        with_status(ports, None, taken)
    with pytest.raises(InvalidArgument, match=rf"--status-port {ports.grpc} is given twice"):
        with_status(ports, None, ports.grpc)
    with pytest.raises(InvalidArgument, match=r"--status-host 'nowhere\.invalid' is neither an IPv4 address"):
        with_status(ports, "nowhere.invalid", 0)
    assert with_status(ports, "0.0.0.0", 0).status_address.startswith("127.0.0.1:")
