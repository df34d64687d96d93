"""A tritonserver that ends by itself is started again, on the same ports, by `tidal serve`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.utils
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.served import Served, publish, serving
from tests.waiting import until
from tidal.server.backoff import PAUSES_S, WELL_AFTER_S, Restarts


def state_of(served: Served) -> dict[str, Any] | None:
    try:
        return served.state
    except FileNotFoundError:  # while none serves
        return None


def comes_back(served: Served, restarts: int) -> bool:
    return until(lambda: (state_of(served) or {}).get("server_restarts") == restarts)


@pytest.mark.server
def test_a_killed_server_serves_again(repository: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, "--model", "echo", "--model", "spare") as served:
        before = served.state
        first = psutil.Process(before["server_pid"])
        stubs = first.children()
        first.kill()
        assert comes_back(served, 1)
        after = served.state
        assert not any(stub.is_running() for stub in stubs)
        assert after["server_pid"] != before["server_pid"]
        assert [after[name] for name in ("http", "grpc", "metrics", "key", "pid", "log")] == [
            before[name] for name in ("http", "grpc", "metrics", "key", "pid", "log")
        ]
        assert served.infer() == served.infer("spare") == served.infer_grpc() == 0.0
        # What the first one wrote is what its end is looked for in.
        assert Path(after["log"]).read_text(errors="replace").count("Started HTTPService") == 2
        said = (tmp_path / "stderr").read_text()
        assert "tritonserver ended by itself (killed by SIGKILL)" in said
        assert "starting tritonserver again (restart 1)" in said
        assert "echo, spare: served again after" in said

        # The new one is watched as the first one was.
        os.kill(served.stubs("echo")[0].pid, signal.SIGKILL)
        assert until(lambda: served.state["restarts"] == {"echo": 1} or served.state["server_restarts"] > 1)
        assert until(lambda: answers(served))

        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        assert served.left_behind() == []


def answers(served: Served) -> bool:
    try:
        return served.infer(timeout=5) == 0.0
    except (OSError, tritonclient.utils.InferenceServerException):
        return False


@pytest.mark.server
def test_what_was_published_meanwhile_is_served(repository: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path) as served:
        publish(models, "echo", version=2)
        publish(models, "late")
        psutil.Process(served.report["server_pid"]).kill()
        assert comes_back(served, 1)
        assert served.infer("late") == 0.0
        ready = [row for row in served.http().get_model_repository_index(served.admin) if row["state"] == "READY"]
        assert {(row["name"], row["version"]) for row in ready} == {("echo", "2"), ("late", "1")}


@pytest.mark.server
def test_a_server_that_does_not_come_back_ends_the_run(repository: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path, "--server-restarts", "2") as served:
        publish(models, "broken", code="import no_such_module\n")
        psutil.Process(served.report["server_pid"]).kill()
        assert served.process.wait(60) == 3
        said = (tmp_path / "stderr").read_text()
        assert said.count("tritonserver did not come back: model 'broken' does not load: ModuleNotFoundError") == 2
        assert served.left_behind() == []


@pytest.mark.server
def test_a_signal_ends_the_wait_for_a_restart(repository: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    publish(models, "echo")
    with serving(models, tmp_path, "--server-restarts", "7") as served:
        publish(models, "broken", code="import no_such_module\n")
        psutil.Process(served.report["server_pid"]).kill()
        # The fifth and later ones wait 8 s and more.
        assert until(lambda: "(restart 4)" in (tmp_path / "stderr").read_text())
        assert until(lambda: (tmp_path / "stderr").read_text().count("did not come back") == 4)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(6) == 0
        assert served.left_behind() == []


def test_pauses_grow_and_are_forgotten() -> None:
    restarts, now, waited = Restarts(), 1000.0, []
    for _ in range(10):
        waited.append(restarts.pause_s(now))
        now += waited[-1]
        restarts = restarts.another(now)
    assert waited == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    assert not restarts.well(now + WELL_AFTER_S - 0.1)
    assert restarts.well(now + WELL_AFTER_S)
    assert Restarts().well(0.0)


@given(st.integers(0, 20), st.floats(0, 1e6), st.floats(0, 1e4))
def test_a_pause_is_what_is_left_of_it(count: int, last_s: float, later_s: float) -> None:
    pause_s = Restarts(count, last_s).pause_s(last_s + later_s)
    assert pause_s == pytest.approx(max(0.0, PAUSES_S[min(count, len(PAUSES_S) - 1)] - later_s), abs=1e-6)
