"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tidal.engine_model.claims import CLAIMS_VARIABLE

# Before torch is imported: its threads wait for each other at every layer, which in models as tiny as those of the
# tests takes far longer than the work itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Or OpenVINO's converter would report each use to its makers, every time from a fork of the whole process.
os.environ.setdefault("CI", "true")

# How long an example takes hangs on what else this machine does.
settings.register_profile("tidal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidal")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test through a real server, whose cores others use too, gets a second try, which the summary lists."""
    for item in items:
        if item.get_closest_marker("server") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))


# Files whose tests of a server take minutes to build what it serves: with the other workers' files, which build too.
_MOSTLY_BUILDING = frozenset({"tests/docs/test_readme.py", "tests/packaging/test_installed.py"})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Among several workers one alone has the files with tests of servers; of the others each file stays whole."""
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def has_server(file: str) -> bool:
        return "pytest.mark.server" in (config.rootpath / file).read_text(encoding="utf-8")

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "server" if has_server(file) and file not in _MOSTLY_BUILDING else file

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cores and GPUs that the tests' servers claim are theirs alone, whatever else serves on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLAIMS_VARIABLE, str(tmp_path_factory.mktemp("claims")))
        yield
