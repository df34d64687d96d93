"""Settings, scheduling and fixtures of all tests."""

from __future__ import annotations

import fcntl
import gc
import os
import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tidal.engine_model.claims import CLAIMS_VARIABLE
from tidal_client.load import loop

# Set before torch is imported: its threads synchronise at every layer, which takes longer than the work of tiny models.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise OpenVINO's converter sends telemetry at each use, from a fork of the whole process.
os.environ.setdefault("CI", "true")

# Test collection creates millions of permanent objects; without garbage collection it takes two thirds of the time.
gc.disable()

# The time of an example depends on the other load of the machine.
settings.register_profile("tidal", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidal")


# Assignment of the marks of all tests of a file.
_MARKS = re.compile(r"^pytestmark = (?:\[[^\]]*\]|.*)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of which the marks of the command line leave out every test: their imports take half a minute."""
    omitted = re.findall(r"\bnot (\w+)", config.option.markexpr)
    if not omitted or " or " in config.option.markexpr or not collection_path.name.startswith("test_"):
        return None
    marks = _MARKS.search(collection_path.read_text(encoding="utf-8"))
    return True if marks is not None and any(f"mark.{each}" in marks[0] for each in omitted) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let one worker collect alone first: it compiles all modules with their assertions, which the others then read."""
    with open(__file__, encoding="utf-8") as file:
        if hasattr(session.config, "workerinput"):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish() -> None:
    """Enable garbage collection, without the objects that test collection created."""
    gc.collect()
    gc.freeze()
    gc.enable()


# Files that build models for minutes before they start servers: they run early, beside other files' servers.
_MOSTLY_BUILDING = ("tests/docs/", "tests/packaging/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute whole files: half of the workers prefer those that start servers, the others those that do not.

    Tests with servers wait for most of their time, and the others compute. With both kinds at any time the cores are
    neither idle nor contended for more than needed. Files of one folder share fixtures, so a worker runs them one after
    another.
    """
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def starts_servers(file: str) -> bool:
        text = (config.rootpath / file).read_text(encoding="utf-8")
        return "pytest.mark.server" in text and not file.startswith(_MOSTLY_BUILDING)

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            servers = node in self.nodes[: len(self.nodes) // 2]
            # The other workers start at the end of the list, with other folders than the first.
            files = sorted(self.workqueue, reverse=not servers)
            files.sort(key=lambda file: (starts_servers(file) != servers, not file.startswith(_MOSTLY_BUILDING)))
            self.workqueue.move_to_end(files[0], last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _no_collection() -> Iterator[None]:
    """Skip the garbage collection before each run of the load generator: with all tests in memory it takes a second."""
    quick = SimpleNamespace(collect=lambda: 0, freeze=lambda: None, unfreeze=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "gc", quick)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_sync() -> Iterator[None]:
    """Leave files to the page cache: a kill, unlike a power loss, loses nothing that was written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the claims of cores and GPUs of the tests' servers apart from those of other servers on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLAIMS_VARIABLE, str(tmp_path_factory.mktemp("claims")))
        yield
