"""New versions of a partitioned model on a running `tidal serve`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.serving import TIDAL, Served, serving
from testing.waiting import until
from tests.serve.partitioned import publish_partitioned, set_instances
from tests.serve.partitioned_server import allocate, live, load_on, loaded, used, versions

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`m` with runtimes of 16 and 64 tokens; the longer one has two instances by its allocation alone."""
    folder = tmp_path_factory.mktemp("versions") / "models"
    publish_partitioned(folder, "m", [16, 64])
    set_instances(folder, "m", {16: 1, 64: 2})
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(repository, tmp_path_factory.mktemp("server")) as served:
        yield served


def test_a_publish_keeps_the_allocation(server: Served, repository: Path) -> None:
    with load_on(server) as load:
        assert load.grown_by(50)
        publish_partitioned(repository, "m", [16, 64], version=2)
        reported = server.tidal("models", "reload", "m")
        assert reported.returncode == 0, reported.stderr
        assert load.grown_by(50)
    assert load.failures == []
    assert {version for _, version in load.answers} == {1, 2}
    assert reported.stdout.splitlines() == [
        "m: version 2 serves now, version 1 before",
        "  m_len16: version 2 serves now, version 1 before",
        "  m_len64: version 2 serves now, version 1 before",
    ]
    assert loaded(server) == {"m_len16": (2, 1), "m_len64": (2, 2)}
    assert until(lambda: live(server) == {"m_len16": 1, "m_len64": 2})
    again = server.tidal("models", "reload", "m")
    assert again.stdout.splitlines()[0] == "m: version 2 serves, as before"
    assert loaded(server) == {"m_len16": (2, 1), "m_len64": (2, 2)}
    log = Path(server.state["log"]).read_text()
    assert "unloaded 'm_len64' version 2" not in log, "the new instances were loaded twice"


def test_a_publish_of_other_runtimes_needs_another_allocation(server: Served, repository: Path) -> None:
    with load_on(server) as load:
        assert load.grown_by(50)
        publish_partitioned(repository, "m", [32, 64], version=3)
        refused = server.tidal("models", "reload", "m")
        assert refused.returncode == 1
        assert "instances names 16" in refused.stderr
        assert "tidal models allocate m 32=COUNT 64=COUNT" in refused.stderr
        assert loaded(server) == {"m_len16": (2, 1), "m_len64": (2, 2)}
        written = server.tidal("models", "allocate", "m", "32=1", "64=1")
        assert (written.returncode, written.stdout) == (0, "m: 32=1 64=1 when this version is loaded\n")
        reported = server.tidal("models", "reload", "m")
        assert reported.returncode == 0, reported.stderr
        assert load.grown_by(50)
    assert load.failures == []
    assert reported.stdout.splitlines()[-1] == "  m_len16: unloaded"
    assert loaded(server) == {"m_len32": (3, 1), "m_len64": (3, 1)}
    assert until(lambda: used(server) == {32: 1, 64: 1})


def test_a_version_that_does_not_load_leaves_the_old_one_everywhere(server: Served, repository: Path) -> None:
    with load_on(server) as load:
        publish_partitioned(repository, "m", [32, 64], version=4)
        (repository / "m_len64" / "4" / "model.py").write_text("raise ValueError('not today')\n")
        refused = server.tidal("models", "reload", "m")
        assert refused.returncode == 1
        assert "model 'm_len64' does not load: " in refused.stderr
        assert refused.stderr.endswith("; version 3 keeps serving\n")
        assert versions(server) == {"m": [3], "m_len32": [3], "m_len64": [3]}
        assert load.grown_by(50)
    assert load.failures == []
    assert {version for _, version in load.answers} == {3}


def test_a_restart_and_a_change_keep_the_version_that_the_front_calls(server: Served) -> None:
    """A newer version is published that would not load."""
    before, stubs = server.state["restarts"].get("m_len64", 0), server.stubs("m_len64")
    stubs[0].kill()
    assert until(lambda: server.state["restarts"].get("m_len64", 0) == before + 1)
    assert until(lambda: len(set(server.stubs("m_len64")) - set(stubs)) == 1)
    allocate(server, n32=2)
    assert loaded(server) == {"m_len32": (3, 2), "m_len64": (3, 1)}
    with load_on(server) as load:
        assert load.grown_by(50)
    assert load.failures == []
    allocate(server, n32=1)


def test_an_interrupted_reload_is_completed_by_the_next(server: Served, repository: Path) -> None:
    with load_on(server) as load:
        publish_partitioned(repository, "m", [32, 64], version=5)
        killed = subprocess.Popen([*TIDAL, "models", "reload", "m"], env=server.environment)
        assert until(lambda: versions(server)["m_len32"] == [3, 5])
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert load.grown_by(50)
        reported = server.tidal("models", "reload", "m")
        assert reported.returncode == 0, reported.stderr
        assert load.grown_by(50)
    assert load.failures == []
    assert {version for _, version in load.answers} == {3, 5}
    assert versions(server) == {"m": [5], "m_len32": [5], "m_len64": [5]}
    assert until(lambda: live(server) == {"m_len32": 1, "m_len64": 1})


def test_a_partitioned_model_is_unloaded_and_loaded_with_its_runtimes(server: Served) -> None:
    assert server.tidal("models", "unload", "m").returncode == 0
    assert loaded(server) == {}
    assert server.tidal("models", "load", "m").returncode == 0
    with load_on(server) as load:
        assert load.grown_by(50)
    assert load.failures == []


def test_a_model_that_is_no_longer_partitioned_unloads_its_runtimes(server: Served, repository: Path) -> None:
    """The last test of this server."""
    publish_partitioned(repository, "m", [32, 64], version=6, placement="polymorphic")
    reported = server.tidal("models", "reload", "m")
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout.splitlines() == [
        "m: version 6 serves now, version 5 before",
        "  m_len32: unloaded",
        "  m_len64: unloaded",
    ]
    assert loaded(server) == {}
