"""Models that are loaded and unloaded with a cascade; without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.controls import ServingControl
from tests.serve.folders import CONFIG, add
from tests.serve.partitioned import publish_partitioned
from tests.tabi.serving import VERSION, cascades, write_cascade
from tidal.catalog.graph import ModelGraph
from tidal.catalog.manifests import load_published
from tidal.errors import Internal, InvalidArgument
from tidal.manifest import MANIFEST_FILE
from tidal.repository.entries import model_entries
from tidal.server import change
from tidal.server.launch import select_models
from tidal.server.model_facts import model_facts
from tidal.server.starting import plan_start
from tidal.tabi.manifest import TabiManifest


def set_target(repository: Path, name: str, accuracy: float) -> None:
    text = f'parameters {{ key: "target_accuracy" value {{ string_value: "{accuracy}" }} }}\n'
    (repository / name / "config.pbtxt").write_text(CONFIG.format(backend="tabi") + text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The cascade `c` of three levels, two of which it calls, and an unrelated model."""
    write_cascade(tmp_path / "c", cascades(three=True), chosen=1, tokenizers=(0, 0, 0))
    add(tmp_path, "c", backend="tabi")
    for level, versions in (("c_l0", (1,)), ("c_l1", (1, 2)), ("c_l2", (3,)), ("other", (1,))):
        add(tmp_path, level, *versions)
    return tmp_path


def names(repository: Path, *wanted: str) -> list[str]:
    return [entry.name for entry in select_models(ModelGraph.read(repository), wanted).served]


def test_dependents_of_a_model(repository: Path) -> None:
    (repository / "both").mkdir()
    (repository / "both" / "config.pbtxt").write_text(
        'platform: "ensemble"\nensemble_scheduling { step [ { model_name: "c" }, { model_name: "other" } ] }\n'
    )
    publish_partitioned(repository, "m", [16])
    graph = ModelGraph.read(repository)
    every = [entry.name for entry in model_entries(repository)]
    assert graph.dependents("c_l0", every) == ["both", "c"]
    assert graph.dependents("c_l0", ["c", "c_l0"]) == ["c"]
    assert graph.dependents("m_len16", every) == ["m"]
    assert graph.dependents("both", every) == graph.dependents("m", every) == []


class TestSelection:
    def test_all_models_without_levels_that_the_cascade_does_not_call(self, repository: Path) -> None:
        assert names(repository) == ["c", "c_l0", "c_l1", "other"]
        set_target(repository, "c", 0.97)
        assert names(repository) == ["c", "c_l0", "c_l1", "c_l2", "other"]

    def test_a_named_cascade_with_its_levels(self, repository: Path) -> None:
        assert names(repository, "c") == ["c", "c_l0", "c_l1"]
        assert names(repository, "c_l0") == ["c_l0"]
        assert names(repository, "c", "c_l2") == ["c", "c_l0", "c_l1", "c_l2"]
        assert names(repository, "other") == ["other"]

    def test_a_level_that_is_not_published_is_omitted(self, repository: Path) -> None:
        (repository / "c_l1" / "1").rmdir()
        (repository / "c_l1" / "2").rmdir()
        assert names(repository, "c") == ["c", "c_l0"]

    def test_a_level_that_another_cascade_calls_is_served(self, repository: Path) -> None:
        made = load_published(repository / "c" / str(VERSION))
        assert isinstance(made, TabiManifest)
        write_cascade(repository / "d", cascades(three=True), chosen=3, tokenizers=(0, 0, 0), levels=made.levels)
        add(repository, "d", backend="tabi")
        graph = ModelGraph.read(repository)
        assert (graph.requires("d"), graph.owned_by("d")) == (("c_l0", "c_l1", "c_l2"), ())
        assert "c_l2" in names(repository)

    def test_levels_start_before_the_cascade(self, repository: Path) -> None:
        plan = plan_start(ModelGraph.read(repository), ["c", "c_l0", "c_l1", "other"])
        assert (plan.by_server, plan.later) == (("c_l0", "c_l1", "other"), (("c",),))

    def test_with_an_invalid_config_all_levels_are_required(self, repository: Path) -> None:
        set_target(repository, "c", 2)
        assert ModelGraph.read(repository).requires("c") == ("c_l0", "c_l1", "c_l2")


class TestChanges:
    def test_levels_are_loaded_before_and_unloaded_after(self, repository: Path) -> None:
        control = ServingControl(repository=repository, watched=set())
        reported = change.load(control, repository, "c")
        assert control.steps == ["c_l0 [1]", "c_l1 [2]", "c [3]"]
        assert reported.splitlines()[0] == "c: version 3 serves now"
        assert change.unload(control, repository, "c") == "c: unloaded; requests in flight are still answered"
        assert control.steps[3:] == ["c unloaded", "c_l0 unloaded", "c_l1 unloaded"]

    def test_a_level_that_is_no_longer_called_is_unloaded(self, repository: Path) -> None:
        control = ServingControl(repository=repository, watched=set())
        set_target(repository, "c", 0.97)
        change.load(control, repository, "c")
        assert sorted(control.served) == ["c", "c_l0", "c_l1", "c_l2"]
        set_target(repository, "c", 0.9)
        assert change.reload(control, repository, "c").splitlines()[-1] == "  c_l2: unloaded"
        assert sorted(control.served) == ["c", "c_l0", "c_l1"]

    def test_levels_that_another_cascade_calls_stay(self, repository: Path) -> None:
        made = load_published(repository / "c" / str(VERSION))
        assert isinstance(made, TabiManifest)
        write_cascade(repository / "d", cascades(), chosen=0, levels=made.levels[:2])
        add(repository, "d", backend="tabi")
        control = ServingControl(repository=repository, watched=set())
        change.load(control, repository, "c")
        change.load(control, repository, "d")
        change.unload(control, repository, "c")
        assert sorted(control.served) == ["c_l0", "d"]
        change.unload(control, repository, "d")
        assert sorted(control.served) == ["c_l0"]  # not built for `d`

    def test_a_cascade_is_not_loaded_where_a_level_fails(self, repository: Path) -> None:
        control = ServingControl(repository=repository, watched=set())
        control.broken.add(("c_l1", 2))
        with pytest.raises(Internal, match="model 'c_l1' does not load"):
            change.load(control, repository, "c")
        assert "c" not in control.served


class TestManifests:
    def test_every_kind_is_read(self, repository: Path) -> None:
        assert isinstance(load_published(repository / "c" / str(VERSION)), TabiManifest)
        (repository / "other/1" / MANIFEST_FILE).write_text('{"kind": "tabbi"}')
        with pytest.raises(InvalidArgument, match="unknown kind 'tabbi': did you mean 'tabi'"):
            load_published(repository / "other/1")

    def test_a_cascade_is_listed_and_is_not_partitioned(self, repository: Path) -> None:
        assert ModelGraph.read(repository).partitioned("c") is None
        facts = next(fact for fact in model_facts(repository, None) if fact.name == "c")
        assert (facts.backend, facts.engine, facts.max_length) == ("tabi", None, 16)
        assert facts.built == "2030-01-01T00:00:00+00:00"
