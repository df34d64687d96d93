"""The request log of a real server: one line per request, whatever its outcome, over HTTP and gRPC."""

from __future__ import annotations

import json
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.boundary.clients import (
    BACKENDS,
    ProbeClient,
    connected,
    holds,
    in_background,
    outcome,
    together,
    write_model,
)
from tests.boundary.scraping import value
from tidal.access_log.target import descriptor_target
from tidal_client.codec import InferRequest

pytestmark = pytest.mark.server


def log_of(server: RunningServer) -> Path:
    return server.repository.with_name("requests.jsonl")


def lines(server: RunningServer, model: str) -> list[dict[str, Any]]:
    """The log lines of a model's requests."""
    log = log_of(server)
    every = [json.loads(each) for each in log.read_text().splitlines()] if log.exists() else []
    return [each for each in every if each["model"] == model]


def ids(server: RunningServer, model: str) -> list[str]:
    """Ids of a model's requests in the log."""
    return [each["id"] for each in lines(server, model)]


def send(ask: ProbeClient, model: str, action: str, name: str, rows: int = 1, **options: Any) -> None:
    """Send a request with the id `name`."""
    texts = np.array([action.encode()] * rows, object).reshape(rows, 1)
    ask.transport.infer(InferRequest(model, {"action": texts}, None, options, name), 20.0)


def test_an_answered_request(server: RunningServer, ask: ProbeClient) -> None:
    name = f"answered-{ask.protocol}"
    send(ask, "probe", "sleep 30", name, rows=3, latency_ms=20_000)
    assert until(lambda: any(each["id"] == name for each in lines(server, "probe")))
    (line,) = [each for each in lines(server, "probe") if each["id"] == name]
    assert (line["model"], line["version"], line["rows"], line["code"]) == ("probe", 1, 3, "OK")
    assert line["tokens"] is line["queue_ms"] is line["execute_ms"] is None  # not reported by this backend
    assert line["total_ms"] >= 30
    assert line["time"].endswith("Z")
    assert set(line) == {
        *("time", "id", "model", "version", "rows", "tokens", "queue_ms", "execute_ms", "total_ms", "code")
    }


CODES: dict[str, tuple[str, dict[str, Any], str]] = {
    "answered": ("reply", {}, "OK"),
    "answered twice": ("twice", {}, "OK"),
    "refused by its service": ("no-such-action", {}, "INVALID_ARG"),
    "refused before that": ("reply", {"zzz": 1, "task": "intents"}, "INVALID_ARG"),
    "late": ("hold", {"latency_ms": 50}, "UNAVAILABLE"),
    "failed in submit": ("raise-in-submit", {}, "INTERNAL"),
    "failed in a thread": ("raise-in-thread", {}, "INTERNAL"),
    "dropped": ("drop", {}, "INTERNAL"),
    "answered wrongly": ("wrong-rows", {}, "INTERNAL"),
}


def test_every_code_has_one_line(server: RunningServer, clients: dict[str, ProbeClient], fresh: str) -> None:
    for protocol, ask in clients.items():
        for name, (action, options, code) in CODES.items():
            assert outcome(send, ask, fresh, action, f"{protocol}: {name}", **options) == code
            # A failed service is restarted in the background.
            assert until(lambda ask=ask: outcome(ask, "reply", model=fresh) == "OK")  # type: ignore[misc]
    send(clients["grpc"], fresh, "reply", "last")
    assert until(lambda: any(each["id"] == "last" for each in lines(server, fresh)))
    named = {each["id"]: each for each in lines(server, fresh) if each["id"] not in ("", "last")}
    expected = {f"{protocol}: {name}": code for protocol in clients for name, (*_, code) in CODES.items()}
    assert {name: each["code"] for name, each in named.items()} == expected
    assert sum(each["id"] not in ("", "last") for each in lines(server, fresh)) == len(expected)
    for protocol in clients:
        assert named[f"{protocol}: refused before that"]["task"] == "intents"
        assert named[f"{protocol}: late"]["total_ms"] >= 50


def test_a_full_queue_and_a_request_of_too_many_rows(server: RunningServer, ask: ProbeClient, tmp_path: Path) -> None:
    name, go_on = f"full-{ask.protocol}", tmp_path / "go_on"

    def first() -> Future[Any]:
        return in_background(send, ask, "small", f"until-file {go_on}", f"{name}-first", rows=4)

    waiting = first()

    def full() -> bool:
        nonlocal waiting
        if waiting.done():  # refused, since it met a request of this loop
            waiting = first()
        return outcome(ask, "reply", model="small") == "UNAVAILABLE"

    assert until(full)
    assert outcome(send, ask, "small", "reply", f"{name}-second") == "UNAVAILABLE"
    assert outcome(send, ask, "small", "reply", f"{name}-third", rows=5) == "INVALID_ARG"
    go_on.touch()
    waiting.result(timeout=20)

    def codes() -> dict[str, str]:
        return {each["id"]: each["code"] for each in lines(server, "small") if each["id"].startswith(name)}

    assert until(lambda: len(codes()) == 3)
    assert codes() == {f"{name}-first": "OK", f"{name}-second": "UNAVAILABLE", f"{name}-third": "INVALID_ARG"}


def test_a_cancelled_request(server: RunningServer, clients: dict[str, ProbeClient]) -> None:
    def cancelled() -> int:
        return sum(each["code"] == "CANCELLED" for each in lines(server, "probe"))

    before = cancelled()
    assert outcome(clients["grpc"], "until-cancelled", timeout_s=1.5) == "DEADLINE_EXCEEDED"
    assert until(lambda: cancelled() == before + 1)


def test_requests_in_flight_at_an_unload(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str, tmp_path: Path
) -> None:
    go_on = tmp_path / "go_on"
    answers = [in_background(send, ask, fresh, f"until-file {go_on}", name) for name, ask in clients.items()]
    assert holds(clients["grpc"], 2, fresh)
    unload = in_background(server.control.unload, fresh)
    assert until(lambda: not server.serves(fresh))
    go_on.touch()
    for each in (*answers, unload):
        each.result(timeout=20)
    assert until(lambda: {each["id"] for each in lines(server, fresh)} >= {*clients})
    codes = [(each["id"], each["code"]) for each in lines(server, fresh) if each["id"]]
    assert sorted(codes) == [(name, "OK") for name in sorted(clients)]


def test_processes_of_several_models_share_the_file(server: RunningServer, clients: dict[str, ProbeClient]) -> None:
    models, each_one = ("probe", "impatient", "small"), 40
    before = {model: len(lines(server, model)) for model in models}

    def run(number: int) -> None:
        model = models[number % 3]
        for count in range(each_one):
            # The queue of `small` may be full, which is logged as well.
            outcome(send, clients["grpc"], model, "reply", f"shared-{number}-{count}-" + "x" * (count % 150))

    together(6, run)
    assert until(lambda: sum(len(lines(server, model)) - before[model] for model in models) >= 6 * each_one)
    found = [each["id"] for model in models for each in lines(server, model) if each["id"].startswith("shared-")]
    assert len(set(found)) == len(found) == 6 * each_one


def test_a_rotated_file(server: RunningServer, clients: dict[str, ProbeClient]) -> None:
    log, moved = log_of(server), log_of(server).with_suffix(".1")
    send(clients["grpc"], "probe", "reply", "before")
    assert until(lambda: ids(server, "probe")[-1:] == ["before"])
    log.rename(moved)
    send(clients["grpc"], "probe", "reply", "after")
    assert until(lambda: log.exists() and ids(server, "probe") == ["after"])
    os.truncate(log, 0)
    send(clients["grpc"], "probe", "reply", "again")
    assert until(lambda: ids(server, "probe") == ["again"])
    assert [json.loads(each)["id"] for each in moved.read_text().splitlines()][-1] == "before"


def test_a_reader_that_stops_and_closes_fails_no_request(tmp_path: Path) -> None:
    write_model(tmp_path, "probe")
    reading, writing = os.pipe()
    name = "x" * 250
    try:
        target = descriptor_target(writing)
        running_for = running_server(tmp_path, extra_backends=BACKENDS, access_log=target)
        with running_for as running, connected(running, "grpc") as (ask,):
            send(ask, "probe", "reply", "first")
            assert json.loads(os.read(reading, 1 << 16))["id"] == "first"
            for _ in range(400):  # more than the pipe holds
                send(ask, "probe", "reply", name)
            os.close(reading)
            (pid,) = running.stub_pids("probe")
            for _ in range(5):
                send(ask, "probe", "reply", "last")
            assert until(lambda: value(running, "tidal_probe_access_log_dropped_lines_total", "probe") > 5)
            assert until(lambda: "the access log cannot be written: [Errno 32] Broken pipe" in running.log_text())
            assert running.log_text().count("the access log cannot be written") == 1
            assert running.stub_pids("probe") == [pid]
            send(ask, "probe", "reply", "still")
    finally:
        os.close(writing)
