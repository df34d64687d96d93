"""Models that a load or unload affects, and their order; without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.controls import Killed, ServingControl
from tests.serve.partitioned import publish_partitioned, set_instances
from tidal.catalog.graph import ModelGraph
from tidal.errors import Internal, Unavailable
from tidal.server import change
from tidal.server.active_config import load_model, restart_model
from tidal.server.change_lock import exclusive_change


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A partitioned `m` of lengths 16 and 64."""
    folder = tmp_path / "models"
    publish_partitioned(folder, "m", [16, 64])
    return folder


@pytest.fixture
def control(repository: Path) -> ServingControl:
    served = ServingControl(repository=repository)
    for model in ("m_len16", "m_len64", "m"):
        served.load(model, None)
    served.steps.clear()
    return served


class TestUnload:
    def test_unloads_the_runtimes_too(self, repository: Path, control: ServingControl) -> None:
        assert change.unload(control, repository, "m") == "m: unloaded; requests in flight are still answered"
        assert control.served == {}

    def test_is_refused_during_a_change_of_instances(self, repository: Path, control: ServingControl) -> None:
        with exclusive_change(repository / "m"), pytest.raises(Unavailable, match="being changed already"):
            change.unload(control, repository, "m")
        assert sorted(control.served) == ["m", "m_len16", "m_len64"]
        refused = []

        def another() -> None:
            with pytest.raises(Unavailable), exclusive_change(repository / "m"):
                pass
            refused.append(True)

        control.at_unload.append(another)
        change.unload(control, repository, "m")
        assert refused == [True]

    def test_leaves_other_models_with_names_like_runtimes(self, repository: Path, control: ServingControl) -> None:
        # Of another front, of no front, and without a manifest.
        publish_partitioned(repository, "m_len32", [128], placement="polymorphic")
        publish_partitioned(repository, "other", [8])
        (repository / "other_len8").rename(repository / "m_len8")
        for model in ("m_len32", "m_len8"):
            control.load(model, None)
        control.served["m_len99"] = [1]
        change.unload(control, repository, "m")
        assert sorted(control.served) == ["m_len32", "m_len8", "m_len99"]


class TestLoad:
    def test_unloads_former_runtimes(self, repository: Path, control: ServingControl) -> None:
        publish_partitioned(repository, "m", [32, 64], version=2)
        control.served["m_len99"] = [1]  # of no front
        reported = change.load(control, repository, "m")
        assert reported.splitlines()[-1] == "  m_len16: unloaded"
        assert control.served == {"m": [2], "m_len32": [2], "m_len64": [2], "m_len99": [1]}

    def test_unloads_all_runtimes_of_a_model_that_is_no_longer_partitioned(
        self, repository: Path, control: ServingControl
    ) -> None:
        publish_partitioned(repository, "m", [64], version=2, placement="polymorphic")
        assert change.load(control, repository, "m").splitlines() == [
            "m: version 2 serves now, version 1 before",
            "  m_len16: unloaded",
            "  m_len64: unloaded",
        ]
        assert control.served == {"m": [2]}
        assert change.load(control, repository, "m") == "m: version 2 serves, as before"

    def test_keeps_runtimes_while_an_earlier_version_needs_them(
        self, repository: Path, control: ServingControl
    ) -> None:
        publish_partitioned(repository, "m", [64], version=2, placement="polymorphic")
        select_versions(repository, 1)
        reported = change.load(control, repository, "m")
        assert reported == "m: version 1 serves, because its version_policy selects it; version 2 is also published"
        assert control.served == {"m": [1], "m_len16": [1], "m_len64": [1]}
        change.unload(control, repository, "m")
        assert control.served == {}


def select_versions(repository: Path, *versions: int) -> None:
    """Select these versions in the front's config.pbtxt."""
    config = repository / "m" / "config.pbtxt"
    config.write_text(f"{config.read_text()}version_policy {{ specific {{ versions: {list(versions)} }} }}\n")


class TestNewVersion:
    """The fake server fails a test in which a front lacks a runtime."""

    def test_runtimes_serve_both_while_the_front_changes(self, repository: Path, control: ServingControl) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        reported = change.load(control, repository, "m")
        assert reported.splitlines() == [
            "m: version 2 serves now, version 1 before",
            "  m_len16: version 2 serves now, version 1 before",
            "  m_len64: version 2 serves now, version 1 before",
        ]
        both = ["m_len16 [1, 2]", "m_len64 [1, 2]"]
        assert control.steps == [*both, "m [2]", "m_len16 [2]", "m_len64 [2]"]

    def test_without_a_new_version_nothing_changes(self, repository: Path, control: ServingControl) -> None:
        reported = change.load(control, repository, "m")
        assert reported.splitlines()[0] == "m: version 1 serves, as before"
        assert control.served == {"m": [1], "m_len16": [1], "m_len64": [1]}

    def test_keeps_the_counts(self, repository: Path, control: ServingControl) -> None:
        set_instances(repository, "m", {16: 2, 64: 3})
        publish_partitioned(repository, "m", [16, 64], version=2)
        change.load(control, repository, "m")
        assert control.instances == {"m": 1, "m_len16": 2, "m_len64": 3}

    def test_a_runtime_that_loses_its_instances_stays_until_the_front_has_changed(
        self, repository: Path, control: ServingControl
    ) -> None:
        publish_partitioned(repository, "m", [64, 128], version=2)
        set_instances(repository, "m", {64: 0, 128: 1})
        control.watched.clear()
        reported = change.load(control, repository, "m")
        assert control.steps == ["m_len128 [2]", "m [2]", "m_len64 unloaded", "m_len128 [2]", "m_len16 unloaded"]
        assert "  m_len64: not loaded, because its allocation has 0 instances" in reported.splitlines()

    @pytest.mark.parametrize("broken", ["m_len16", "m_len64", "m"])
    def test_that_does_not_load_leaves_the_old_one_serving(
        self, repository: Path, control: ServingControl, broken: str
    ) -> None:
        publish_partitioned(repository, "m", [16, 32, 64], version=2)
        control.broken.add((broken, 2))
        reason = f"model '{broken}' does not load: version 2 is at UNAVAILABLE state: it is broken; version 1 keeps"
        for _ in range(2):
            with pytest.raises(Internal, match=reason):
                change.load(control, repository, "m")
            assert control.served == {"m": [1], "m_len16": [1], "m_len64": [1]}
        control.broken.clear()
        change.load(control, repository, "m")
        assert control.served == {"m": [2], "m_len16": [2], "m_len32": [2], "m_len64": [2]}

    def test_an_interrupted_load_is_completed_by_the_next(self, repository: Path, control: ServingControl) -> None:
        publish_partitioned(repository, "m", [32, 64], version=2)
        for step in range(20):
            control.steps.clear()
            control.killed_at[:] = [step]
            try:
                change.load(control, repository, "m")
                break
            except Killed:
                control.check()
            # The next attempt continues from there and is killed one step later.
        assert step >= 3
        assert control.served == {"m": [2], "m_len32": [2], "m_len64": [2]}

    def test_an_earlier_version_can_be_selected_again(self, repository: Path, control: ServingControl) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        change.load(control, repository, "m")
        select_versions(repository, 1)
        reported = change.load(control, repository, "m")
        assert reported.splitlines()[0] == "m: version 1 serves now, version 2 before"
        assert control.served == {"m": [1], "m_len16": [1], "m_len64": [1]}

    def test_next_to_an_older_one_that_keeps_serving(self, repository: Path, control: ServingControl) -> None:
        """Like the levels of a cascade: two versions at a time, each with its own runtimes."""
        config = repository / "m" / "config.pbtxt"
        publish_partitioned(repository, "m", [32, 64], version=2)
        config.write_text(f"{config.read_text()}version_policy {{ latest {{ num_versions: 2 }} }}\n")
        change.load(control, repository, "m")
        assert control.served == {"m": [1, 2], "m_len16": [1], "m_len32": [2], "m_len64": [1, 2]}


class TestBeforeAReload:
    """A new version is published, and the front still serves the old one."""

    def test_a_restart_keeps_what_the_front_calls(self, repository: Path, control: ServingControl) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        control.watched.clear()
        restart_model(control, ModelGraph.read(repository), "m_len16")
        assert control.steps == ["m_len16 unloaded", "m_len16 [1]"]

    def test_a_change_of_counts_keeps_it_too(self, repository: Path, control: ServingControl) -> None:
        publish_partitioned(repository, "m", [16, 64], version=2)
        set_instances(repository, "m", {16: 2, 64: 1})
        load_model(control, ModelGraph.read(repository), "m_len16")
        assert (control.served["m_len16"], control.instances["m_len16"]) == ([1], 2)
        reported = change.load(control, repository, "m_len16")
        assert reported == "m_len16: version 1 serves, because its front calls it; version 2 is also published"

    def test_a_restart_of_the_front_loads_its_runtimes_before(self, repository: Path, control: ServingControl) -> None:
        restart_model(control, ModelGraph.read(repository), "m")
        assert control.steps == ["m unloaded", "m [1]"]
        publish_partitioned(repository, "m", [32, 64], version=2)
        restart_model(control, ModelGraph.read(repository), "m")
        assert control.served == {"m": [2], "m_len16": [1], "m_len32": [2], "m_len64": [2]}
