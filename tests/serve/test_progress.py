"""Reports of a start while models load, and errors of commands while tritonserver restarts; without a server."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tidal.errors import NotFound, Unavailable
from tidal.server.connection import ServerConnection, choose_server, explained
from tidal.server.control import ServerControl
from tidal.server.progress import SILENCE_S, LogReader, StartProgress, follow
from tidal.server.state import ServerState, remove_state, running_servers, write_state

# Log lines of Triton 2.51.
LOADING = 'I1122 17:30:34.477773 19775 model_lifecycle.cc:472] "loading: a:1"\n'
LOADED = "I1122 17:30:36.477773 19775 model_lifecycle.cc:849] \"successfully loaded 'a'\"\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_reports_each_model_with_its_time(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level("INFO")
    progress = StartProgress(["a", "b"], lambda model: ["c", "d"] if model == "b" else [], clock := Clock())
    log = tmp_path / "log"
    log.write_text("of an earlier start: successfully loaded 'b'\n")
    reader = LogReader(log, log.stat().st_size)
    with log.open("a") as file:
        for text, at in ((LOADING + LOADED[:20], 1.0), (LOADED[20:], 3.5)):
            file.write(text)
            file.flush()
            clock.now = at
            follow(progress, reader.lines())
    follow(progress, reader.lines())
    progress.failure("b", "no memory")
    progress.failure("b", "reported once")
    assert caplog.messages == [
        "a: loaded after 2.5 s (1 of 2)",
        "model 'b' does not load: no memory; c, d depend on it",
    ]
    assert (progress.loaded, progress.failed) == ({"a"}, {"b": "no memory"})


def test_names_models_that_load_for_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    progress = StartProgress(["a", "b"], lambda _: [], clock := Clock())
    progress.loading("a")
    progress.loading("b")
    progress.succeeded("b")
    for clock.now in (SILENCE_S - 1, SILENCE_S, SILENCE_S + 1, 2 * SILENCE_S):
        progress.waiting()
    assert caplog.messages[1:] == [
        "still loading: a (10 s); 1 of 2 are loaded",
        "still loading: a (20 s); 1 of 2 are loaded",
    ]


@pytest.fixture
def restarting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerState:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = psutil.Process()
    state = ServerState(
        http="127.0.0.1:9",
        grpc="127.0.0.1:8",
        metrics="127.0.0.1:7",
        status="127.0.0.1:6",
        key=None,
        pid=process.pid,
        pid_started=process.create_time(),
        server_pid=process.pid,
        version="2",
        repository=tmp_path,
        log=None,
        restarting="it ended by itself, killed by SIGKILL",
    )
    write_state(state)
    return state


MESSAGE = "tritonserver on 127.0.0.1:9 is restarting: it ended by itself, killed by SIGKILL"


@pytest.mark.parametrize("which", [None, "9"])
def test_commands_report_a_restart(restarting: ServerState, which: str | None) -> None:
    with pytest.raises(Unavailable, match=MESSAGE):
        choose_server(which)


def test_a_running_command_reports_a_restart_too(restarting: ServerState) -> None:
    before = restarting.model_copy(update={"restarting": None})
    connection = ServerConnection(ServerControl("127.0.0.1:9"), before)
    assert str(explained(connection, Unavailable("no server answers"))).startswith(MESSAGE)
    missing = NotFound("no such model")
    assert explained(connection, missing) is missing


def test_a_state_file_of_another_process_is_not_removed(restarting: ServerState) -> None:
    write_state(restarting.model_copy(update={"pid": 1, "pid_started": psutil.Process(1).create_time()}))
    remove_state(9)
    assert [state.pid for state in running_servers()] == [1]
    write_state(restarting)
    remove_state(9)
    assert running_servers() == []
