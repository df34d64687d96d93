"""A change of instances without a server: the conditions that it waits for or refuses."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from testing.serving import tidal_in_process
from tests.serve.controls import RecordingControl
from tests.serve.partitioned import publish_partitioned
from tidal.errors import Unavailable
from tidal.repository.allocation import make_allocation, read_allocation, write_allocation
from tidal.server.allocate import LiveFront, allocate, check_one_server, partitioned_model
from tidal.server.control import ModelState, ServerControl
from tidal.server.state import ServerState, write_state


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A partitioned `m` of lengths 16 and 64; no server runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "models"
    publish_partitioned(folder, "m", [16, 64])
    return folder


@dataclass(frozen=True)
class FakeFront(LiveFront):
    """A front that follows its file at once; `seen` has the loaded counts of each poll, the last one repeats."""

    seen: list[dict[int, int]] = field(default_factory=list)

    def loaded(self) -> dict[int, int]:
        return dict(self.seen.pop(0) if len(self.seen) > 1 else self.seen[0])

    def used(self) -> list[dict[int, int]]:
        allocation = read_allocation(self.repository / self.model.name)
        return [allocation.serving()] if allocation is not None else []


def front_of(repository: Path, *seen: dict[int, int]) -> tuple[FakeFront, RecordingControl]:
    control = RecordingControl()
    return FakeFront(control, "", repository, partitioned_model(repository, "m"), list(seen)), control


class TestLongestRuntime:
    def test_is_waited_for_while_it_is_restarted(self, repository: Path) -> None:
        front, control = front_of(repository, {16: 1, 64: 0}, {16: 1, 64: 0}, {16: 1, 64: 1})
        allocate(front, {16: 2, 64: 1}, lambda _line: None)
        assert control.calls == [("m_len16", 2)]

    def test_that_stays_unloaded_refuses_the_change(self, repository: Path) -> None:
        front, control = front_of(repository, {16: 1, 64: 0})
        with pytest.raises(Unavailable, match="'m_len64', is not loaded: try again, or tidal models load m"):
            allocate(front, {16: 2, 64: 1}, lambda _line: None, wait_s=0.2)
        assert control.calls == []
        assert read_allocation(repository / "m") is None


class TestNoEntrance:
    """Each change with what the file has while the models are loaded."""

    def change(
        self, repository: Path, loaded: dict[int, int], wanted: dict[int, int], *, entrance: bool
    ) -> tuple[set[bool], list[tuple[str, int]]]:
        front, control = front_of(repository, loaded)
        during: set[bool] = set()

        def step(line: str) -> None:
            allocation = read_allocation(repository / "m")
            assert allocation is not None
            if allocation.loaded is not None:
                during.add(allocation.entrance)

        allocate(front, wanted, step, entrance=entrance)
        assert read_allocation(repository / "m") == make_allocation(wanted, entrance=entrance)
        return during, control.calls

    def test_it_refuses_before_the_longest_runtime_is_unloaded(self, repository: Path) -> None:
        during, calls = self.change(repository, {16: 1, 64: 1}, {16: 2, 64: 0}, entrance=False)
        assert (during, calls) == ({False}, [("m_len64", "unload"), ("m_len16", 2)])

    def test_it_accepts_after_the_longest_runtime_was_loaded(self, repository: Path) -> None:
        write_allocation(repository / "m", make_allocation({16: 2, 64: 0}, entrance=False))
        during, calls = self.change(repository, {16: 2, 64: 0}, {16: 1, 64: 1}, entrance=True)
        assert (during, calls) == ({False}, [("m_len16", 1), ("m_len64", 1)])

    def test_without_other_counts_only_the_file_changes(self, repository: Path) -> None:
        assert self.change(repository, {16: 1, 64: 1}, {16: 1, 64: 1}, entrance=False) == (set(), [])

    def test_its_instances_are_shown_and_set_as_those_of_an_entrance(self, repository: Path) -> None:
        write_allocation(repository / "m", make_allocation({16: 2, 64: 0}, entrance=False))
        words = ("models", "allocate", "m", "--repository", str(repository))
        shown = tidal_in_process(*words, "--json", environment=dict(os.environ))
        assert json.loads(shown.stdout)["instances"] == {"16": 2, "64": 0}
        refused = tidal_in_process(*words, "16=1", environment=dict(os.environ))
        assert "the longest runtime, 64, needs at least 1 instance, got 0" in refused.stderr
        assert tidal_in_process(*words, "64=1", environment=dict(os.environ)).returncode == 0
        assert read_allocation(repository / "m") == make_allocation({16: 2, 64: 1})


def test_a_front_that_is_not_served_fails_the_change(repository: Path) -> None:
    front, _ = front_of(repository, {16: 1, 64: 1})
    gone = Gone(front.control, "", repository, front.model, front.seen)
    with pytest.raises(Unavailable, match="did not stop using instances within"):
        allocate(gone, {16: 0, 64: 1}, lambda _line: None, wait_s=0.2)


class Gone(FakeFront):
    """A front that has been unloaded."""

    def used(self) -> list[dict[int, int]]:
        return []


class TestOneServer:
    """Another server of this user, on port 9, next to the one with metrics at `127.0.0.1:2`."""

    @staticmethod
    def another(monkeypatch: pytest.MonkeyPatch, repository: Path, *serves: str) -> None:
        process = psutil.Process()
        at = {"http": "127.0.0.1:9", "grpc": "127.0.0.1:8", "metrics": "127.0.0.1:7", "key": None, "version": "2"}
        pids = {"pid": process.pid, "pid_started": process.create_time(), "server_pid": process.pid}
        write_state(ServerState.model_validate({**at, **pids, "repository": repository.resolve(), "log": None}))
        rows = [ModelState(name, 1, "READY", "") for name in serves]
        if rows:
            monkeypatch.setattr(ServerControl, "index", lambda _: rows)

    def test_that_serves_the_model_refuses_a_change(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.another(monkeypatch, repository, "m")
        front, control = front_of(repository, {16: 1, 64: 1})
        with pytest.raises(Unavailable, match=r"on 127.0.0.1:9 serves 'm' from the same repository too"):
            allocate(front, {16: 2, 64: 1}, lambda _line: None)
        assert (control.calls, read_allocation(repository / "m")) == ([], None)
        check_one_server(repository, "m", "127.0.0.1:7")  # the server itself

    def test_that_serves_another_model_or_repository_does_not(
        self, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.another(monkeypatch, repository, "n")
        check_one_server(repository, "m", "127.0.0.1:2")
        self.another(monkeypatch, repository.parent, "m")
        check_one_server(repository, "m", "127.0.0.1:2")

    def test_that_does_not_answer_may_serve_it(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.another(monkeypatch, repository)
        with pytest.raises(Unavailable, match="stop one of the servers first"):
            check_one_server(repository, "m", "127.0.0.1:2")
