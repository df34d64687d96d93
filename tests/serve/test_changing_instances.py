"""Changes of the allocation of a partitioned model on a running `tidal serve`."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.grpc

from testing.serving import TIDAL, Served, environment_in, serving, tidal_in_process
from testing.waiting import until
from tests.serve.partitioned import publish_partitioned, set_instances
from tests.serve.partitioned_server import allocate, ask, live, load_on, loaded, used
from tidal.repository.allocation import read_allocation
from tidal.server.status_endpoint import read_readiness
from tidal.server.supervision import POLL_S

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`m` with runtimes of 16 and 64 tokens; the longer one has two instances by its allocation alone."""
    folder = tmp_path_factory.mktemp("changing") / "models"
    publish_partitioned(folder, "m", [16, 64])
    set_instances(folder, "m", {16: 1, 64: 2}, loaded={16: 1, 64: 1})  # an interrupted change
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(repository, tmp_path_factory.mktemp("server")) as served:
        yield served


def test_a_start_loads_the_allocation(server: Served, repository: Path) -> None:
    """The file has an interrupted change, and another count than config.pbtxt."""
    assert loaded(server) == {"m_len16": (1, 1), "m_len64": (1, 2)}
    assert live(server) == {"m_len16": 1, "m_len64": 2}
    allocation = read_allocation(repository / "m")
    assert allocation is not None
    assert allocation.loaded is None
    assert until(lambda: used(server) == {16: 1, 64: 2})
    log = Path(server.state["log"]).read_text()
    assert log.count("successfully loaded 'm_len64'") == 1, "it was loaded twice"
    assert server.report["models"][-1]["name"] == "m_len64"


def test_changes_under_load_fail_no_request(server: Served) -> None:
    with load_on(server) as load:
        for wanted in ({16: 2, 64: 1}, {16: 0, 64: 1}, {16: 1, 64: 2}):
            assert load.grown_by(50)
            counts = [f"{n}={count}" for n, count in wanted.items()]
            answer = server.tidal("models", "allocate", "m", *counts)
            assert answer.returncode == 0, answer.stderr
            assert answer.stdout.splitlines()[-1] == f"m uses {' '.join(counts)}"
            assert {n: count for n, (_, count) in loaded(server).items()} == {
                f"m_len{n}": count for n, count in wanted.items() if count
            }
            assert used(server) == wanted
        assert load.grown_by(50)
    assert load.failures == []
    assert len(load.answers) >= 200
    assert {length for length, _ in load.answers} == {16, 64}
    print(f"{len(load.answers)} requests through 3 changes, none failed")


def test_a_change_leaves_the_other_instances_running(server: Served) -> None:
    allocate(server, n16=1, n64=1)
    before = server.stubs("m_len64")
    assert len(before) == 1
    allocate(server, n64=2)
    both = set(server.stubs("m_len64"))
    assert set(before) < both
    allocate(server, n64=1)
    assert until(lambda: len(server.stubs("m_len64")) == 1)
    assert set(server.stubs("m_len64")) < both


@contextmanager
def all_busy(served: Served, instances: int, seconds: float = 3.0) -> Iterator[list[threading.Thread]]:
    """Keep `instances` instances busy with one request each during the block; at its end all are answered."""
    folder = served.runtime / "tmp"
    for mark in folder.glob("busy-*"):
        mark.unlink()
    answers: list[tuple[int, int]] = []
    with tritonclient.grpc.InferenceServerClient(served.report["grpc"]) as client:
        threads = [threading.Thread(target=lambda: answers.append(ask(client, seconds))) for _ in range(instances)]
        for thread in threads:
            thread.start()
        assert until(lambda: len(list(folder.glob("busy-*"))) == instances)
        yield threads
        for thread in threads:
            thread.join()
    assert len(answers) == instances


def test_an_instance_is_unloaded_after_the_front_released_it(server: Served, repository: Path) -> None:
    allocate(server, n16=0, n64=2)
    with all_busy(server, 2) as requests:
        change = threading.Thread(target=allocate, args=(server,), kwargs={"n64": 1})
        change.start()
        assert until(lambda: under_change(repository) == {16: 0, 64: 2})
        before, polls = loads(server, "m_len64"), 0
        while all(request.is_alive() for request in requests):
            # Triton waits for the instance that it removes, too, but only after the request to remove it.
            now = loads(server, "m_len64")
            if all(request.is_alive() for request in requests):
                assert now == before
                polls += 1
            time.sleep(0.05)
        assert polls > 0
        change.join()
    assert loaded(server) == {"m_len64": (1, 1)}


def test_an_interrupted_change_is_completed_by_the_next(server: Served, repository: Path) -> None:
    allocate(server, n16=0, n64=2)
    with all_busy(server, 2, seconds=10.0):  # a command starts meanwhile, on a busy machine too
        killed = subprocess.Popen([*TIDAL, "models", "allocate", "m", "16=1", "64=1"], env=server.environment)
        assert until(lambda: under_change(repository) is not None)
        refused = server.tidal("models", "allocate", "m", "64=1")
        assert refused.returncode == 1
        assert refused.stderr == "error: the instances of 'm' are being changed already: try again\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert under_change(repository) == {16: 0, 64: 2}
    shown = server.tidal("models", "allocate", "m")
    assert "A change is incomplete: complete it with tidal models allocate m 16=1 64=1" in shown.stdout
    with load_on(server) as load:
        allocate(server, n16=1, n64=1)
        assert load.grown_by(50)
    assert load.failures == []
    assert under_change(repository) is None
    assert loaded(server) == {"m_len16": (1, 1), "m_len64": (1, 1)}
    assert used(server) == {16: 1, 64: 1}


def test_the_supervisor_restarts_a_runtime_with_its_allocation(server: Served) -> None:
    allocate(server, n16=1, n64=2)
    before = server.state["restarts"].get("m_len64", 0)
    # The stub of a removed instance, or of the completion of a config, may take a moment to end.
    assert until(lambda: len(server.stubs("m_len64")) == 2)
    stubs = server.stubs("m_len64")
    stubs[0].kill()
    assert until(lambda: server.state["restarts"].get("m_len64", 0) == before + 1)
    assert until(lambda: len(set(server.stubs("m_len64")) - set(stubs)) == 2)
    assert loaded(server)["m_len64"] == (1, 2)
    with load_on(server) as load:
        assert load.grown_by(50)
    assert load.failures == []


def test_the_supervisor_leaves_a_runtime_without_instances_alone(server: Served) -> None:
    restarts = server.state["restarts"]
    allocate(server, n16=0, n64=1)
    time.sleep(4 * POLL_S)  # four polls of the supervisor
    assert loaded(server) == {"m_len64": (1, 1)}
    assert (
        server.tidal("models", "load", "m_len16").stdout
        == "m_len16: not loaded, because its allocation has 0 instances\n"
    )
    assert (server.state["restarts"], server.stubs("m_len16")) == (restarts, [])
    rows = {row["name"]: row for row in json.loads(server.tidal("models", "list", "--json").stdout)}
    assert [rows[name]["instances"] for name in ("m", "m_len16", "m_len64")] == [1, 0, 1]
    document = read_readiness(server.state["status"])
    assert document is not None
    wanted = {name: each["wanted"] for name, each in document["models"].items()}
    assert (document["ready"], wanted) == (True, {"m": True, "m_len16": False, "m_len64": True})


def test_bad_counts_are_refused_in_one_sentence(server: Served) -> None:
    for counts, reported in (
        (["32=1"], "error: '32=1': m has no runtime with max_length 32; accepted are 16, 64\n"),
        (["64=0"], "error: instances: the longest runtime, 64, needs at least 1 instance, got 0\n"),
        (["64=2000"], "error: instances.64: input should be less than or equal to 1024\n"),
        (["64"], "error: '64' is not valid: expected N=COUNT, for example 64=1\n"),
        (["64=1", "64=2"], "error: '64=2': max_length 64 is given twice\n"),
    ):
        answer = server.tidal("models", "allocate", "m", *counts)
        assert (answer.returncode, answer.stderr) == (1, reported)
    assert "is a runtime of 'm'" in server.tidal("models", "allocate", "m_len64", "64=1").stderr
    assert "has no published version" in server.tidal("models", "allocate", "n").stderr


def test_a_dry_run_changes_nothing(server: Served, repository: Path) -> None:
    before = read_allocation(repository / "m")
    planned = server.tidal("models", "allocate", "m", "64=3", "--dry-run")
    assert (planned.returncode, planned.stdout) == (0, "m_len64: 1 -> 3 instances\n")
    assert read_allocation(repository / "m") == before


def test_an_allocation_outlives_the_server(server: Served, repository: Path, tmp_path: Path) -> None:
    """A second server of the repository loads it, and refuses changes while the first one runs."""
    allocate(server, n64=2)
    written = tidal_in_process(
        *("models", "allocate", "m", "16=0", "--repository", str(repository)), environment=environment_in(tmp_path)
    )
    assert (written.returncode, written.stdout) == (0, "m: 16=0 64=2 at the next start of tidal serve\n")
    before = read_allocation(repository / "m")
    with serving(repository, server.runtime, "--model", "m") as second:
        assert loaded(second) == {"m_len64": (1, 2)}
        refused = second.tidal("models", "allocate", "m", "64=3", "--server", second.report["http"])
        assert refused.returncode == 1
        assert f"the server on {server.report['http']} serves 'm' from the same repository too" in refused.stderr
        with load_on(second) as load:
            assert load.grown_by(50)
        assert load.failures == []
    assert read_allocation(repository / "m") == before


def loads(served: Served, model: str) -> int:
    """Number of requests to the server to load a model."""
    return Path(served.state["log"]).read_text().count(f"loading: {model}:")


def under_change(repository: Path) -> dict[int, int] | None:
    """Loaded counts in the allocation file while a change is in progress."""
    allocation = read_allocation(repository / "m")
    return allocation.loaded if allocation is not None else None
