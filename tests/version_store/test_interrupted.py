"""A publisher or fetch that is killed or fails at any step leaves whole versions only, and the next one completes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import until
from tests.serve.partitioned import publish_partitioned
from tests.version_store.support import add_plain, contents, get, memory_store, send
from tidal.errors import Unavailable
from tidal.repository.entries import ModelEntry, model_entries
from tidal.version_store.store import VersionStore, open_store

pytestmark = pytest.mark.slow

#: Operations on files that are not undone by a kill.
_EVENTS = frozenset({"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.copyfile"})


def killed_at(step: int, run: Callable[[], object]) -> bool:
    """Run a function in a process that kills itself before a step; returns whether it was killed.

    Steps are the operations on files that Python's audit hooks report, and each file that is opened for writing.
    """
    child = os.fork()
    if child == 0:
        left = step

        def audit(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            writes = event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in "wx"
            if writes or event in _EVENTS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)
        try:
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed"
    return os.WIFSIGNALED(status)


def at_every_step(run: Callable[[int], object], check: Callable[[int], None]) -> int:
    """Kill a function of the step's number at each step, from the first; returns the number of kills."""
    step = 1
    while killed_at(step, partial(run, step)):
        check(step)
        step += 1
        assert step < 1000
    return step - 1


def source(folder: Path) -> Path:
    """A repository with the partitioned `m` and the plain `p`."""
    publish_partitioned(folder, "m", [16])
    shutil.rmtree(add_plain(folder, "p") / "weights")
    return folder


def versions(repository: Path) -> dict[str, dict[str, object]]:
    """Contents of the versions of a repository, without what is beside them."""
    entries = model_entries(repository) if repository.exists() else []
    return {
        f"{entry.name}/{number}": contents(entry.version_dir(number))
        for entry in entries
        for number in entry.versions()
    }


def check_store(store: VersionStore, folder: Path, expected: dict[str, dict[str, object]]) -> None:
    """Every version that the store lists can be fetched, with all that it requires."""
    for model in store.models():
        for version in store.versions(model):
            target = folder / uuid.uuid4().hex
            get(store, target, model, version)
            assert versions(target).items() <= expected.items()
            assert f"{model}/{version}" in versions(target)
            shutil.rmtree(target)


def test_a_publisher_that_is_killed_at_each_step(tmp_path: Path) -> None:
    repository = source(tmp_path / "a")
    expected = versions(repository)

    def run(step: int) -> None:
        send(open_store(f"file://{tmp_path}/store{step}"), repository, "m", "p")

    def check(step: int) -> None:
        uri = f"file://{tmp_path}/store{step}"
        check_store(open_store(uri), tmp_path, expected)
        # The next call completes what was begun.
        send(open_store(uri), repository, "m", "p")
        assert open_store(uri).models() == ["m", "m_len16", "p"]
        check_store(open_store(uri), tmp_path, expected)

    assert at_every_step(run, check) > 20


def test_a_fetch_that_is_killed_at_each_step(tmp_path: Path) -> None:
    repository = source(tmp_path / "a")
    store = open_store(f"file://{tmp_path}/store")
    send(store, repository, "m", "p")
    expected, complete = versions(repository), contents(repository)

    def fetch_all(into: Path) -> None:
        for model in ("m", "p"):
            get(store, into, model)

    def run(step: int) -> None:
        fetch_all(tmp_path / f"b{step}")

    def check(step: int) -> None:
        target = tmp_path / f"b{step}"
        found = versions(target)
        assert found.items() <= expected.items()
        if "m/1" in found:  # after what it requires
            assert "m_len16/1" in found
        fetch_all(target)
        assert contents(target) == complete

    assert at_every_step(run, check) > 20


class Failing:
    """A file system of fsspec whose call number `at`, counted from 1, fails."""

    def __init__(self, files: Any, at: int) -> None:
        self.files, self.left = files, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.files, name)
        if name not in ("cat_file", "info", "ls", "open", "pipe_file", "put_file"):
            return found

        def call(*arguments: object, **options: object) -> Any:
            self.left -= 1
            if self.left == 0:
                raise ValueError(f"{name} failed\nfor a reason")
            return found(*arguments, **options)

        return call


def failing_at_every_call(store: VersionStore, run: Callable[[VersionStore], object], check: Callable[[], None]) -> int:
    """Let each call of the store's file system fail in turn, until a run has no such call; returns their number."""
    files = store._files
    at = 1
    while True:
        failing = Failing(files, at)
        broken = VersionStore(failing, store._root, store.uri)
        try:
            run(broken)
        except Unavailable as error:
            assert "failed" in str(error)
            assert "\n" not in str(error)
        if failing.left > 0:
            return at - 1
        check()
        at += 1
        assert at < 1000


def test_a_store_that_fails_at_each_call_of_a_publisher(tmp_path: Path) -> None:
    repository = source(tmp_path / "a")
    expected = versions(repository)
    stores: list[VersionStore] = []

    def run(broken: VersionStore) -> None:
        stores.append(memory_store())
        send(VersionStore(broken._files, stores[-1]._root, stores[-1].uri), repository, "m", "p")

    def check() -> None:
        check_store(stores[-1], tmp_path, expected)
        send(stores[-1], repository, "m", "p")
        check_store(stores[-1], tmp_path, expected)
        assert stores[-1].models() == ["m", "m_len16", "p"]

    assert failing_at_every_call(memory_store(), run, check) > 20


def test_a_store_that_fails_at_each_call_of_a_fetch(tmp_path: Path) -> None:
    repository, store = source(tmp_path / "a"), memory_store()
    send(store, repository, "m", "p")
    expected, complete = versions(repository), contents(repository)
    targets: list[Path] = []

    def run(broken: VersionStore) -> None:
        targets.append(tmp_path / f"b{len(targets)}")
        for model in ("m", "p"):
            get(broken, targets[-1], model)

    def check() -> None:
        assert versions(targets[-1]).items() <= expected.items()
        for model in ("m", "p"):
            get(store, targets[-1], model)
        assert contents(targets[-1]) == complete

    assert failing_at_every_call(store, run, check) > 10


def test_the_next_fetch_reads_what_is_missing_only(tmp_path: Path) -> None:
    store = memory_store()
    add_plain(tmp_path / "a", "m")
    send(store, tmp_path / "a", "m")
    # The last one of its contents is read by call 10: a listing, a manifest, and two calls for each content.
    opened: list[str] = []

    class Recording(Failing):
        def __getattr__(self, name: str) -> Any:
            call = super().__getattr__(name)
            return (lambda path, *rest: opened.append(path) or call(path, *rest)) if name == "open" else call

    with pytest.raises(Unavailable):
        get(VersionStore(Recording(store._files, 10), store._root, store.uri), tmp_path / "b", "m")
    first = len(opened)
    get(VersionStore(Recording(store._files, 0), store._root, store.uri), tmp_path / "b", "m")
    assert 0 < first <= 4
    assert len(opened) - first == 1
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_one_fetch_at_a_time_and_no_version_is_removed(tmp_path: Path) -> None:
    store = memory_store()
    for number in range(1, 7):
        add_plain(tmp_path / "a", "m", number)
        send(store, tmp_path / "a", "m")
        get(store, tmp_path / "b", "m")
    assert ModelEntry(tmp_path / "b" / "m").versions() == [1, 2, 3, 4, 5, 6]
    descriptor = os.open(tmp_path / "b", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    add_plain(tmp_path / "a", "m", 7)
    send(store, tmp_path / "a", "m")
    child = os.fork()
    if child == 0:
        os.close(descriptor)
        get(store, tmp_path / "b", "m")
        os._exit(0)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert not (tmp_path / "b/m/7").exists()
    os.close(descriptor)
    assert until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0))
    assert (tmp_path / "b/m/7").exists()
