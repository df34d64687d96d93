"""Which models a change of what is served takes along, without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.serve.families import publish_family
from tidal.errors import Unavailable
from tidal.repository import ModelEntry
from tidal.server import change
from tidal.server.allocate import changing
from tidal.server.control import ModelState, ServerControl


@dataclass(frozen=True)
class FakeControl(ServerControl):
    """Serves the newest version of what it is told to; does what it was given to do at an unload."""

    address: str = ""
    repository: Path = Path()
    versions: dict[str, int] = field(default_factory=dict)
    at_unload: list[Callable[[], None]] = field(default_factory=list)

    def index(self) -> list[ModelState]:
        return [ModelState(name, version, "READY", "") for name, version in sorted(self.versions.items())]

    def load(self, model: str, config: Mapping[str, Any] | None) -> None:
        self.versions[model] = ModelEntry(self.repository / model).versions()[-1]

    def unload(self, model: str) -> None:
        while self.at_unload:
            self.at_unload.pop()()
        self.versions.pop(model, None)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A partitioned `m` of lengths 16 and 64."""
    folder = tmp_path / "models"
    publish_family(folder, "m", [16, 64])
    return folder


@pytest.fixture
def control(repository: Path) -> FakeControl:
    served = FakeControl(repository=repository)
    for model in ("m", "m_len16", "m_len64"):
        served.load(model, None)
    return served


class TestUnload:
    def test_takes_the_runtimes_along(self, repository: Path, control: FakeControl) -> None:
        assert change.unload(control, repository, "m") == "m: unloaded; requests in flight are still answered"
        assert control.versions == {}

    def test_waits_for_its_turn_with_changes_of_instances(self, repository: Path, control: FakeControl) -> None:
        with changing(repository / "m"), pytest.raises(Unavailable, match="being changed already"):
            change.unload(control, repository, "m")
        assert sorted(control.versions) == ["m", "m_len16", "m_len64"]
        refused = []

        def another() -> None:
            with pytest.raises(Unavailable), changing(repository / "m"):
                pass
            refused.append(True)

        control.at_unload.append(another)
        change.unload(control, repository, "m")
        assert refused == [True]

    def test_leaves_other_models_whose_names_look_like_runtimes(self, repository: Path, control: FakeControl) -> None:
        # Of another front, of no front, and without a manifest.
        publish_family(repository, "m_len32", [128], placement="polymorphic")
        publish_family(repository, "other", [8])
        (repository / "other_len8").rename(repository / "m_len8")
        for model in ("m_len32", "m_len8"):
            control.load(model, None)
        control.versions["m_len99"] = 1
        change.unload(control, repository, "m")
        assert sorted(control.versions) == ["m_len32", "m_len8", "m_len99"]


class TestLoad:
    def test_lets_former_runtimes_go(self, repository: Path, control: FakeControl) -> None:
        publish_family(repository, "m", [32, 64], version=2)
        control.versions["m_len99"] = 1  # nobody's
        told = change.load(control, repository, "m")
        assert told.splitlines()[-1] == "  m_len16: unloaded"
        assert control.versions == {"m": 2, "m_len32": 2, "m_len64": 2, "m_len99": 1}

    def test_lets_all_runtimes_of_a_model_go_that_is_partitioned_no_more(
        self, repository: Path, control: FakeControl
    ) -> None:
        publish_family(repository, "m", [64], version=2, placement="polymorphic")
        assert change.load(control, repository, "m").splitlines() == [
            "m: version 2 serves now, version 1 before",
            "  m_len16: unloaded",
            "  m_len64: unloaded",
        ]
        assert control.versions == {"m": 2}
        assert change.load(control, repository, "m") == "m: version 2 serves, as before"

    def test_keeps_runtimes_while_an_earlier_version_needs_them(
        self, repository: Path, control: FakeControl, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish_family(repository, "m", [64], version=2, placement="polymorphic")
        monkeypatch.setattr(FakeControl, "load", lambda *_: None)  # as its version_policy asks
        change.load(control, repository, "m")
        assert control.versions == {"m": 1, "m_len16": 1, "m_len64": 1}
        change.unload(control, repository, "m")
        assert control.versions == {}
