"""Models that are loaded and unloaded with Triton's ensembles; without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.controls import ServingControl
from tests.serve.folders import add, add_ensemble
from tests.serve.partitioned import publish_partitioned
from tidal.catalog.graph import ModelGraph
from tidal.errors import Internal, NotFound
from tidal.server import change
from tidal.server.launch import Selection, select_models
from tidal.server.starting import plan_start


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Ensembles: `both` of `a` and a partitioned `m`, `twice` of `both` and `a`, `lame` of `a` and `b`, which is not
    published, and `limp` of `lame`."""
    folder = tmp_path / "models"
    publish_partitioned(folder, "m", [16, 64])
    add(folder, "a", 1)
    add(folder, "b")
    add_ensemble(folder, "both", "a", "m", "a")
    add_ensemble(folder, "twice", "both", "a")
    add_ensemble(folder, "lame", "a", "b")
    add_ensemble(folder, "limp", "lame")
    return folder


def names(selection: Selection) -> list[str]:
    return [entry.name for entry in selection.served]


class TestSteps:
    def test_are_listed_once_in_order(self, repository: Path) -> None:
        assert ModelGraph.read(repository).steps("both") == ("a", "m")

    def test_other_models_have_none(self, repository: Path) -> None:
        (repository / "a" / "config.pbtxt").write_text("no config")
        assert [ModelGraph.read(repository).steps(name) for name in ("a", "m", "nobody")] == [()] * 3


class TestSelection:
    def test_ensembles_with_all_steps_published(self, repository: Path) -> None:
        found = select_models(ModelGraph.read(repository), [])
        assert names(found) == ["a", "both", "m", "m_len16", "m_len64", "twice"]
        assert [entry.name for entry in found.unpublished] == ["b"]
        assert found.incomplete == (
            ("lame", "requires 'b', which is not served"),
            ("limp", "requires 'lame', which is not served"),
        )

    def test_a_named_ensemble_is_served_with_all_nested_steps(self, repository: Path) -> None:
        assert names(select_models(ModelGraph.read(repository), ["twice"])) == [
            "a",
            "both",
            "m",
            "m_len16",
            "m_len64",
            "twice",
        ]
        assert names(select_models(ModelGraph.read(repository), ["a"])) == ["a"]

    @pytest.mark.parametrize("name", ["lame", "limp"])
    def test_a_named_ensemble_without_a_step_is_refused(self, repository: Path, name: str) -> None:
        with pytest.raises(NotFound, match=r"'lame' requires 'b', which is not served: run tidal build SPEC\.yaml"):
            select_models(ModelGraph.read(repository), [name])

    def test_an_ensemble_that_names_itself_terminates(self, repository: Path) -> None:
        add_ensemble(repository, "twice", "both", "twice")
        assert "twice" in names(select_models(ModelGraph.read(repository), ["twice"]))

    def test_an_ensemble_without_a_version_is_incomplete(self, repository: Path) -> None:
        (repository / "both" / "1").rmdir()
        found = dict(select_models(ModelGraph.read(repository), []).incomplete)
        assert found["both"].endswith("mkdir " + str(repository / "both" / "1"))
        assert found["twice"] == "requires 'both', which is not served"
        with pytest.raises(NotFound, match="'both' has no version"):
            select_models(ModelGraph.read(repository), ["both"])

    def test_ensembles_alone_are_not_enough(self, tmp_path: Path) -> None:
        add(tmp_path, "a")
        add_ensemble(tmp_path, "one", "a")
        with pytest.raises(NotFound, match=r"has a published version: run tidal build SPEC\.yaml$"):
            select_models(ModelGraph.read(tmp_path), [])


class TestChanges:
    def test_ensembles_start_last(self, repository: Path) -> None:
        plan = plan_start(ModelGraph.read(repository), ["a", "both", "m", "m_len16", "m_len64", "twice"])
        assert plan.later == (("both",), ("twice",))
        assert plan.by_server == ("a", "m", "m_len16", "m_len64")

    def test_steps_are_loaded_before_and_stay_loaded(self, repository: Path) -> None:
        control = ServingControl(repository=repository)
        reported = change.load(control, repository, "both")
        assert reported.splitlines()[0] == "both: version 1 serves now"
        assert {"a", "m", "m_len16", "m_len64", "both"} == set(control.served)
        assert control.steps[-1] == "both [1]"
        change.unload(control, repository, "both")
        assert "both" not in control.served
        assert {"a", "m", "m_len16"} <= set(control.served)

    def test_a_step_that_does_not_load_is_reported(self, repository: Path) -> None:
        control = ServingControl(repository=repository, broken={("a", 1)})
        with pytest.raises(Internal, match="model 'a' does not load"):
            change.load(control, repository, "both")
        assert "both" not in control.served
