"""`tidal serve` restarts a tritonserver that ended by itself, on the same ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.utils
from hypothesis import given
from hypothesis import strategies as st

from testing.serving import Served, publish, serving
from testing.waiting import until
from tidal.server.backoff import STABLE_AFTER_S, Restarts
from tidal.server.lifecycle import ServeOutcome, restart_while_failing
from tidal.server.signals import Flag


def state_of(served: Served) -> dict[str, Any] | None:
    try:
        return served.state
    except FileNotFoundError:  # while no server runs
        return None


def comes_back(served: Served, restarts: int) -> bool:
    return until(lambda: (state_of(served) or {}).get("server_restarts") == restarts)


@pytest.mark.server
def test_a_killed_server_serves_again(tmp_path: Path) -> None:
    """With everything that is published then."""
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path) as served:
        before = served.state
        publish(models, "echo", version=2)
        publish(models, "late")
        first = psutil.Process(before["server_pid"])
        stubs = first.children()
        first.kill()
        assert comes_back(served, 1)
        after = served.state
        assert not any(runs(stub) for stub in stubs)
        assert after["server_pid"] != before["server_pid"]
        assert [after[name] for name in ("http", "grpc", "metrics", "key", "pid", "log")] == [
            before[name] for name in ("http", "grpc", "metrics", "key", "pid", "log")
        ]
        assert served.infer() == served.infer("late") == served.infer_grpc() == 0.0
        ready = [row for row in served.http().get_model_repository_index(served.admin) if row["state"] == "READY"]
        assert {(row["name"], row["version"]) for row in ready} == {("echo", "2"), ("late", "1")}
        # The restarted server appends to the log of the first.
        assert Path(after["log"]).read_text(errors="replace").count("Started HTTPService") == 2
        log = (tmp_path / "stderr").read_text()
        assert "tritonserver ended by itself (killed by SIGKILL)" in log
        assert "starting tritonserver again (restart 1)" in log
        assert "echo, late: served again after" in log

        # The supervisor watches the new server, too.
        os.kill(served.stubs("echo")[0].pid, signal.SIGKILL)
        assert until(lambda: restarted_model(served) or (state_of(served) or {}).get("server_restarts") == 2)
        assert until(lambda: answers(served))

        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        assert served.left_behind() == []


def restarted_model(served: Served) -> bool:
    return (state_of(served) or {}).get("restarts") == {"echo": 1}


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def answers(served: Served) -> bool:
    try:
        return served.infer(timeout=5) == 0.0
    except (OSError, tritonclient.utils.InferenceServerException):
        return False


@pytest.mark.server
def test_a_signal_during_a_restart_ends_the_run(tmp_path: Path) -> None:
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path) as served:
        # Every later load takes long.
        publish(models, "echo", version=2, code="import time\ntime.sleep(600)\n")
        psutil.Process(served.report["server_pid"]).kill()
        assert until(lambda: "(restart 1)" in (tmp_path / "stderr").read_text())
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0
        assert served.left_behind() == []


@pytest.mark.server
def test_a_server_that_does_not_start_again_ends_the_run(tmp_path: Path) -> None:
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path, "--strict", "--server-restarts", "2") as served:
        publish(models, "broken", code="import no_such_module\n")
        psutil.Process(served.report["server_pid"]).kill()
        host, _, port = served.report["grpc"].partition(":")
        assert until(lambda: "does not start again" in (tmp_path / "stderr").read_text())
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind((host, int(port)))
            other.listen()
            assert served.process.wait(60) == 3
        log = (tmp_path / "stderr").read_text()
        assert "tritonserver does not start again: model 'broken' does not load: ModuleNotFoundError" in log
        assert f"does not start again: grpc port {port} is in use" in log
        assert "again after 2 restarts in a row: giving up" in log
        assert served.left_behind() == []


@pytest.mark.server
def test_a_signal_ends_the_wait_for_a_restart(tmp_path: Path) -> None:
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path, "--server-restarts", "7") as served:
        shutil.rmtree(models / "echo")  # every restart fails before it starts a process
        psutil.Process(served.report["server_pid"]).kill()
        # The fourth one waits for 4 s.
        assert until(lambda: (tmp_path / "stderr").read_text().count("does not start again") == 3)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0
        assert "(restart 4)" not in (tmp_path / "stderr").read_text()
        assert served.left_behind() == []


class Attempts:
    """Attempts with given outcomes and serving times in seconds, on a fake clock that records the pauses."""

    def __init__(self, *each: tuple[ServeOutcome, float]) -> None:
        self.now, self.waited, self.numbers = 0.0, list[float](), list[int]()
        self._left = list(each)

    def attempt(self, number: int) -> tuple[ServeOutcome, float]:
        self.numbers.append(number)
        ended, served_s = self._left.pop(0)
        self.now += 500.0 + served_s  # time to load
        return ended, served_s

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now += seconds
        return not self._left

    def run(self, most: int) -> ServeOutcome:
        return restart_while_failing(self.attempt, most, self.wait, lambda: self.now)


def test_a_long_serving_server_resets_the_count() -> None:
    by_itself = ServeOutcome.BY_ITSELF
    attempts = Attempts(
        (by_itself, 10), (by_itself, 119), (by_itself, 121), (by_itself, 0), (by_itself, 0), (by_itself, 0)
    )
    assert attempts.run(3) is by_itself
    assert attempts.waited == [0, 1, 2, 0, 1, 2]
    assert attempts.numbers == [1, 2, 3, 4, 5, 6]


def test_a_requested_end_is_not_followed_by_a_restart() -> None:
    assert (
        Attempts((ServeOutcome.BY_ITSELF, 0), (ServeOutcome.CUT_SHORT, 0), (ServeOutcome.BY_ITSELF, 0)).run(5)
        is ServeOutcome.CUT_SHORT
    )
    assert Attempts((ServeOutcome.BY_ITSELF, 0)).run(5) is ServeOutcome.CLEANLY  # a stop during the pause
    none = Attempts((ServeOutcome.CLEANLY, 0))
    assert none.run(0) is ServeOutcome.BY_ITSELF
    assert none.waited == none.numbers == []


def test_a_signal_handler_ends_the_wait_for_a_flag() -> None:
    flag = Flag()
    assert not flag.wait(0.0)
    before = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert flag.wait(30)
        assert flag.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)


# Pauses before the 1st, 2nd, 3rd … restart in a row.
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


def test_pauses_grow_until_stable() -> None:
    restarts, now, waited = Restarts(), 1000.0, []
    for _ in range(10):
        waited.append(restarts.pause_s(now))
        now += waited[-1]
        restarts = restarts.restarted(now)
    assert waited == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    assert not restarts.stable(now + STABLE_AFTER_S - 0.1)
    assert restarts.stable(now + STABLE_AFTER_S)
    assert Restarts().stable(0.0)


@given(st.integers(0, 20), st.floats(0, 1e6), st.floats(0, 1e4))
def test_elapsed_time_counts_towards_the_pause(count: int, last_s: float, later_s: float) -> None:
    pause_s = Restarts(count, last_s).pause_s(last_s + later_s)
    assert pause_s == pytest.approx(max(0.0, PAUSES_S[min(count, len(PAUSES_S) - 1)] - later_s), abs=1e-6)
