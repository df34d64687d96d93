"""Changes of the allocation of a partitioned model on a running `tidal serve`."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from testing.serving import TIDAL, Served, serving
from testing.waiting import until
from tests.serve.partitioned import publish_partitioned, set_instances
from tidal.repository.allocation import read_allocation
from tidal.server.allocate import LiveFront, partitioned_model, wanted_now
from tidal.server.allocate import allocate as change_instances
from tidal.server.control import ServerControl
from tidal.server.gauges import used_instances
from tidal.server.status_endpoint import read_readiness
from tidal.server.supervision import POLL_S

pytestmark = pytest.mark.server
_CLIENTS = 6


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


def control(served: Served) -> ServerControl:
    return ServerControl(served.report["http"], served.state["key"])


def loaded(served: Served, front: str = "m") -> dict[str, tuple[int, int]]:
    """Runtimes that serve: version and requested instances."""
    admin = control(served)
    found = {}
    for row in admin.index():
        if row.state == "READY" and row.name.startswith(f"{front}_len"):
            groups = admin.config(row.name, row.version)["instance_group"]
            found[row.name] = (row.version, sum(group["count"] for group in groups))
    return found


def live(served: Served) -> dict[str, int]:
    return {name: len(served.stubs(name)) for name in loaded(served)}


def used(served: Served) -> dict[int, int]:
    versions = used_instances(served.report["metrics"], "m")
    return versions[max(versions)]


def ask(client: tritonclient.grpc.InferenceServerClient, seconds: float = 0.0, model: str = "m") -> tuple[int, int]:
    """Send a request; return the runtime's length and version."""
    tensor = tritonclient.grpc.InferInput("SECONDS", [1], "FP32")
    tensor.set_data_from_numpy(np.array([seconds], dtype=np.float32))
    length, version = client.infer(model, [tensor], client_timeout=20).as_numpy("RAN")
    return int(length), int(version)


@dataclass
class Load:
    """Responses and failures of closed-loop clients."""

    answers: list[tuple[int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def grown_by(self, more: int) -> bool:
        aim = len(self.answers) + more
        return until(lambda: len(self.answers) >= aim or bool(self.failures))


@contextmanager
def load_on(served: Served) -> Iterator[Load]:
    """Send requests to `m` from several clients until the block ends; each takes 8 ms of a runtime."""
    load, stop = Load(), threading.Event()

    def client() -> None:
        with tritonclient.grpc.InferenceServerClient(served.report["grpc"]) as asking:
            while not stop.is_set():
                try:
                    load.answers.append(ask(asking, 0.008))
                except Exception as error:
                    load.failures.append(str(error))

    clients = [threading.Thread(target=client) for _ in range(_CLIENTS)]
    for thread in clients:
        thread.start()
    try:
        yield load
    finally:
        stop.set()
        for thread in clients:
            thread.join()


def allocate(served: Served, **counts: int) -> None:
    """Allocate like the command, without a process: `n16=1` is one instance of 16 tokens."""
    repository = Path(served.report["repository"])
    model = partitioned_model(repository, "m")
    wanted = {**wanted_now(repository, model), **{int(name[1:]): count for name, count in counts.items()}}
    change_instances(
        LiveFront(control(served), served.report["metrics"], repository, model), wanted, lambda _line: None
    )


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
        for wanted in ({16: 1, 64: 1}, {16: 1, 64: 2}, {16: 2, 64: 1}, {16: 0, 64: 1}, {16: 1, 64: 2}):
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
    assert len(load.answers) >= 300
    assert {length for length, _ in load.answers} == {16, 64}
    print(f"{len(load.answers)} requests through 5 changes, none failed")


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
def all_busy(served: Served, instances: int, seconds: float = 2.0) -> Iterator[list[threading.Thread]]:
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
        assert polls > 5
        change.join()
    assert loaded(server) == {"m_len64": (1, 1)}


def test_an_interrupted_change_is_completed_by_the_next(server: Served, repository: Path) -> None:
    allocate(server, n16=0, n64=2)
    with all_busy(server, 2, seconds=8.0):  # commands that start meanwhile take their time on a busy machine
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
    stubs = server.stubs("m_len64")
    stubs[0].kill()
    assert until(lambda: server.state["restarts"].get("m_len64", 0) == before + 1)
    assert until(lambda: len(set(server.stubs("m_len64")) - set(stubs)) == 2)
    assert loaded(server)["m_len64"] == (1, 2)
    with load_on(server) as load:
        assert load.grown_by(100)
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


def test_a_publish_keeps_the_allocation(server: Served, repository: Path) -> None:
    allocate(server, n16=1, n64=2)
    with load_on(server) as load:
        assert load.grown_by(100)
        publish_partitioned(repository, "m", [16, 64], version=2)
        reported = server.tidal("models", "reload", "m")
        assert reported.returncode == 0, reported.stderr
        assert load.grown_by(200)
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
        assert load.grown_by(100)
    assert load.failures == []
    assert reported.stdout.splitlines()[-1] == "  m_len16: unloaded"
    assert loaded(server) == {"m_len32": (3, 1), "m_len64": (3, 1)}
    assert until(lambda: used(server) == {32: 1, 64: 1})


def versions(served: Served) -> dict[str, list[int]]:
    """Versions of `m` and its runtimes that serve."""
    found: dict[str, list[int]] = {}
    for row in control(served).index():
        if row.state == "READY" and (row.name == "m" or row.name.startswith("m_len")):
            found.setdefault(row.name, []).append(row.version)
    return found


def test_a_version_that_does_not_load_leaves_the_old_one_everywhere(server: Served, repository: Path) -> None:
    with load_on(server) as load:
        publish_partitioned(repository, "m", [32, 64], version=4)
        (repository / "m_len64" / "4" / "model.py").write_text("raise ValueError('not today')\n")
        refused = server.tidal("models", "reload", "m")
        assert refused.returncode == 1
        assert "model 'm_len64' does not load: " in refused.stderr
        assert refused.stderr.endswith("; version 3 keeps serving\n")
        assert versions(server) == {"m": [3], "m_len32": [3], "m_len64": [3]}
        assert load.grown_by(100)
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
        assert load.grown_by(100)
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


def test_bad_counts_are_refused_in_one_sentence(server: Served) -> None:
    for counts, reported in (
        (["16=1"], "error: '16=1': m has no runtime with max_length 16; accepted are 32, 64\n"),
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
    planned = server.tidal("models", "allocate", "m", "32=3", "--dry-run")
    assert (planned.returncode, planned.stdout) == (0, "m_len32: 1 -> 3 instances\n")
    assert read_allocation(repository / "m") == before


def test_a_second_server_of_the_repository_refuses_changes(server: Served, repository: Path) -> None:
    before = read_allocation(repository / "m")
    with serving(repository, server.runtime, "--model", "m") as second:
        refused = second.tidal("models", "allocate", "m", "64=2", "--server", second.report["http"])
        assert refused.returncode == 1
        assert f"the server on {server.report['http']} serves 'm' from the same repository too" in refused.stderr
    assert read_allocation(repository / "m") == before


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


def test_an_allocation_outlives_the_server(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    publish_partitioned(repository, "m", [16, 64])
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with serving(repository, tmp_path / "first") as first:
        assert loaded(first) == {"m_len16": (1, 1), "m_len64": (1, 1)}
        allocate(first, n64=2)
        assert loaded(first) == {"m_len16": (1, 1), "m_len64": (1, 2)}
    written = first.tidal("models", "allocate", "m", "16=0", "--repository", str(repository))
    assert (written.returncode, written.stdout) == (0, "m: 16=0 64=2 at the next start of tidal serve\n")
    with serving(repository, tmp_path / "second", "--model", "m") as second:
        assert loaded(second) == {"m_len64": (1, 2)}
        with load_on(second) as load:
            assert load.grown_by(50)
        assert load.failures == []


def loads(served: Served, model: str) -> int:
    """Number of requests to the server to load a model."""
    return Path(served.state["log"]).read_text().count(f"loading: {model}:")


def under_change(repository: Path) -> dict[int, int] | None:
    """Loaded counts in the allocation file while a change is in progress."""
    allocation = read_allocation(repository / "m")
    return allocation.loaded if allocation is not None else None
