"""Reloads under load, and long runs of failing requests."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import psutil
import pytest

from testing.servers import RunningServer
from testing.waiting import until
from tests.boundary.clients import ProbeClient, outcome, write_model

pytestmark = pytest.mark.server


class Load:
    """Requests over both protocols, without a pause, until it is stopped."""

    def __init__(self, clients: list[ProbeClient], model: str) -> None:
        self.outcomes: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(ask, model, action), daemon=True)
            for ask in clients
            for action in ("reply", "sleep 30")
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, ask: ProbeClient, model: str, action: str) -> None:
        while not self._stop.is_set():
            self.outcomes.append(outcome(ask, action, model=model, timeout_s=30))

    def reached(self, requests: int) -> bool:
        return len(self.outcomes) >= requests

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(40)


def test_no_request_fails_while_versions_change(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str
) -> None:
    with Load(list(clients.values()), fresh) as load:
        # New versions, then the same version with another config.
        for version, note in ((2, ""), (3, ""), (3, "changed")):
            write_model(server.repository, fresh, version=version, note=note)
            server.control.load(fresh, None)
            assert server.control.config(fresh, version)
            assert until(partial(load.reached, len(load.outcomes) + 100))
    assert Counter(load.outcomes) == {"OK": len(load.outcomes)}
    assert clients["http"]("reply", model=fresh)["echo"].item() == b"replychanged"


def test_unload_and_load_under_load_answer_every_request(
    server: RunningServer, clients: dict[str, ProbeClient]
) -> None:
    write_model(server.repository, "shifting")
    server.control.load("shifting", None)
    with Load(list(clients.values()), "shifting") as load:
        for _ in range(3):
            server.control.unload("shifting")
            assert until(lambda: "UNAVAILABLE" in load.outcomes[-8:])
            server.control.load("shifting", None)
            assert until(lambda: load.outcomes[-8:] == ["OK"] * 8)
    # Between the two the model is not served: requests are refused, and none hangs or fails otherwise.
    assert set(load.outcomes) <= {"OK", "UNAVAILABLE"}, Counter(load.outcomes)
    server.control.unload("shifting")


def test_failing_requests_leave_nothing_behind(
    server: RunningServer, clients: dict[str, ProbeClient], fresh: str
) -> None:
    def fail(count: int, ask: ProbeClient) -> None:
        actions = ("drop", "wrong-rows", "bad-array", "no such action")
        for index in range(count):
            assert outcome(ask, actions[index % 4], model=fresh) != "OK"
        for _ in range(count // 4):
            assert outcome(ask, "reply", model=fresh, unknown=1) == "INVALID_ARG"

    (pid,) = server.stub_pids(fresh)
    for ask in clients.values():
        fail(100, ask)
    before, shared = psutil.Process(pid).memory_info().rss, sum(server.shared_memory().values())
    for ask in clients.values():
        fail(400, ask)
    assert sum(server.shared_memory().values()) == shared
    assert psutil.Process(pid).memory_info().rss - before < 8 * 2**20
    assert psutil.Process(pid).num_threads() < 20
