"""Relations between the models of a repository."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.manifests import publish_front, runtime, write
from tests.serve.controls import ServingControl
from tests.serve.folders import add_ensemble
from tests.tabi.serving import cascades, write_cascade
from tidal.catalog import graph as module
from tidal.catalog.graph import ModelGraph, PartitionedModel
from tidal.repository.names import runtime_model
from tidal.server import change
from tidal.server.launch import select_models
from tidal.server.starting import plan_start
from tidal.tabi.manifest import Level


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A partitioned `m` with different lengths in its versions 1 and 2, and standalone models."""
    publish_front(tmp_path, "m", 1, [16, 32], placement="partitioned")
    publish_front(tmp_path, "m", 2, [16, 64], placement="partitioned")
    for length, versions in ((16, (1, 2)), (32, (1,)), (64, (2,))):
        for version in versions:
            fields: dict[str, Any] = {"kind": "engine", "front": "m", "runtime": runtime(length), "threads": 1}
            fields["inputs"] = [{"name": "input_ids", "below": 9}]
            write(tmp_path, runtime_model("m", length), version, **fields)
    publish_front(tmp_path, "plain", 1, [16])
    publish_front(tmp_path, "plain_len16", 1, [16])
    (tmp_path / "damaged/1").mkdir(parents=True)
    (tmp_path / "damaged/1/manifest.json").write_text("{")
    return tmp_path


class TestPartitioned:
    @pytest.mark.parametrize("runtime", ["m_len16", "m_len32", "m_len64"])
    def test_every_runtime_has_its_owner(self, repository: Path, runtime: str) -> None:
        graph = ModelGraph.read(repository)
        assert graph.owner(runtime) == graph.partitioned("m") == PartitionedModel("m", 2, (16, 64))
        assert graph.front_of(runtime) == "m"
        assert graph.partitioned(runtime) is None

    def test_requires_the_runtimes_of_a_version_and_owns_all(self, repository: Path) -> None:
        graph = ModelGraph.read(repository)
        assert graph.requires("m") == ("m_len16", "m_len64")
        assert graph.requires("m", 1) == ("m_len16", "m_len32")
        assert graph.owned_by("m") == ("m_len16", "m_len32", "m_len64")
        assert graph.superseded() == {"m_len32"}
        assert graph.dependents("m_len32", graph.models) == ["m"]

    def test_runtimes_of_a_front_that_is_not_published_are_not_superseded(self, repository: Path) -> None:
        shutil.rmtree(repository / "m")
        assert ModelGraph.read(repository).superseded() == set()

    @pytest.mark.parametrize("other", ["plain", "plain_len16", "damaged", "absent"])
    def test_others_have_no_relations(self, repository: Path, other: str) -> None:
        graph = ModelGraph.read(repository)
        assert graph.owner(other) is graph.partitioned(other) is graph.front_of(other) is None
        assert graph.requires(other) == graph.owned_by(other) == ()
        assert graph.load_order([other]) == [other]

    def test_of_an_unknown_repository_has_none(self) -> None:
        graph = ModelGraph.read(None)
        assert graph.models == graph.requires("m") == graph.owned_by("m") == ()
        assert graph.owner("m_len16") is None
        assert graph.load_order(["m"]) == ["m"]


def test_a_snapshot_stays_as_it_was_read(repository: Path) -> None:
    graph = ModelGraph.read(repository)
    before = graph.requires("m")
    publish_front(repository, "m", 3, [128], placement="partitioned")
    assert graph.requires("m") == before
    assert ModelGraph.read(repository).requires("m") == ("m_len128",)


CONFIG = 'backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
PLAIN = ("a", "b")
FRONTS = ("f", "g")
CASCADES = ("c", "d")
ENSEMBLES = ("s", "t", "u")
LENGTHS = (16, 32, 64)


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Random relations: lengths of two versions of fronts, levels of cascades, steps of ensembles."""
    lengths = st.lists(st.sampled_from(LENGTHS), min_size=1, unique=True).map(sorted)
    fronts = {name: (draw(lengths), draw(lengths)) for name in FRONTS}
    runtimes = sorted({runtime_model(name, n) for name, both in fronts.items() for n in {*both[0], *both[1]}})
    own = {name: (f"{name}_l0", f"{name}_l1") for name in CASCADES}
    everyone = [*PLAIN, *FRONTS, *(level for levels in own.values() for level in levels)]
    levels = {}
    for name in CASCADES:
        candidates = st.sampled_from(everyone)
        levels[name] = [draw(st.one_of(st.just(own[name][place]), candidates)) for place in range(2)]
    everyone += [*CASCADES, *runtimes]
    steps = {}
    for name in ENSEMBLES:
        steps[name] = draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=3))
        everyone.append(name)
    return {"fronts": fronts, "levels": levels, "steps": steps, "own": own}


def write_world(folder: Path, world: Mapping[str, Any]) -> None:
    """A repository with these relations."""
    for name, versions in world["fronts"].items():
        for version, lengths in enumerate(versions, 1):
            publish_front(folder, name, version, lengths, placement="partitioned")
            for length in lengths:
                fields: dict[str, Any] = {"kind": "engine", "front": name, "runtime": runtime(length), "threads": 1}
                fields["inputs"] = [{"name": "input_ids", "below": 9}]
                write(folder, runtime_model(name, length), version, **fields)
                (folder / runtime_model(name, length) / "config.pbtxt").write_text(CONFIG)
        (folder / name / "config.pbtxt").write_text(CONFIG)
    for name in (*PLAIN, *(level for levels in world["own"].values() for level in levels)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)
    for name, models in world["levels"].items():
        made = write_cascade(folder / name, cascades())
        levels = tuple(moved(level, model) for level, model in zip(made.levels, models, strict=True))
        write_cascade(folder / name, cascades(), levels=levels)
        (folder / name / "config.pbtxt").write_text(CONFIG)
    for name, models in world["steps"].items():
        add_ensemble(folder, name, *models)


def moved(level: Level, model: str) -> Level:
    return level.model_copy(update={"model": model, "version": 1})


def direct(world: Mapping[str, Any]) -> dict[str, set[str]]:
    """Models that each model requires, from the drawn relations alone."""
    edges = {name: {runtime_model(name, n) for n in versions[1]} for name, versions in world["fronts"].items()}
    return edges | {name: set(models) for key in ("levels", "steps") for name, models in world[key].items()}


def closure(edges: Mapping[str, set[str]], model: str) -> set[str]:
    """Brute-force transitive closure of the requirements of a model."""
    found = set(edges.get(model, ()))
    while more := {each for name in found for each in edges.get(name, ())} - found:
        found |= more
    return found


def test_an_ensemble_of_a_runtime_is_loaded_after_the_front_that_brings_it(tmp_path: Path) -> None:
    own = {name: (f"{name}_l0", f"{name}_l1") for name in CASCADES}
    fronts: dict[str, Any] = {"f": ([16], [16, 32]), "g": ([16], [16])}
    steps = {"s": ["f_len16"], "t": ["s", "f"], "u": ["a"]}
    world = {"fronts": fronts, "levels": {name: list(its) for name, its in own.items()}, "steps": steps, "own": own}
    write_world(tmp_path, world)
    control = ServingControl(repository=tmp_path, watched=set())
    change.load(control, tmp_path, "t")
    complete(control, direct(world))
    assert set(control.served) == {"f_len16", "f_len32", "f", "s", "t"}


@settings(max_examples=12, deadline=None)
@given(worlds(), st.data())
def test_walks_agree_with_the_transitive_closure(world: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as parent, pytest.MonkeyPatch.context() as patched:
        folder = Path(parent) / "models"
        folder.mkdir()
        write_world(folder, world)
        read: list[tuple[Path, str]] = []
        for what, path in (("load_published", "manifest"), ("read_config", "config")):
            original = getattr(module, what)
            patched.setattr(
                module, what, lambda f, original=original, path=path: (read.append((f, path)), original(f))[1]
            )
        graph, edges = ModelGraph.read(folder), direct(world)
        every = graph.models
        for name in every:
            assert set(graph.requires(name)) == edges.get(name, set())
            order = graph.load_order([name])
            assert sorted(order) == sorted({name, *closure(edges, name)})
            assert all(order.index(each) < order.index(user) for user in order for each in edges.get(user, ()))
            users = {user for user in every if name in closure(edges, user)}
            former = {front for front in world["fronts"] if name in graph.runtimes_of(front)}
            reached = users | {user for front in former for user in (front, *every) if front in closure(edges, user)}
            assert set(graph.dependents(name, every)) == reached | former
        assert sorted(graph.load_order(every)) == sorted(every)
        selected = {entry.name for entry in select_models(graph, []).served}
        assert all(closure(edges, name) <= selected for name in selected)
        own = {level for name, levels in world["own"].items() for level in levels if level in world["levels"][name]}
        assert set(every) - selected == graph.superseded()
        assert own <= selected
        plan = plan_start(graph, sorted(selected))
        stages = [plan.by_server, *plan.later]
        at = {name: number for number, stage in enumerate(stages) for name in stage}
        assert set(at) == selected
        for name in {*world["levels"], *world["steps"]} & selected:
            assert all(at[each] < at[name] for each in edges[name])
        assert len(read) == len(set(read)), "a file was read more than once"

    model = data.draw(st.sampled_from(every), label="model")
    check_changes(world, edges, model, data)


def check_changes(world: Mapping[str, Any], edges: Mapping[str, set[str]], model: str, data: st.DataObject) -> None:
    """Load two models on an empty server and unload one: the remaining models have everything that they require."""
    other = data.draw(
        st.sampled_from(sorted({*world["fronts"], *world["levels"], *world["steps"], *PLAIN})), label="other"
    )
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "models"
        folder.mkdir()
        write_world(folder, world)
        control = ServingControl(repository=folder, watched=set())
        change.load(control, folder, model)
        complete(control, edges)
        assert set(control.served) == {model, *closure(edges, model)}
        change.load(control, folder, other)
        complete(control, edges)
        before = set(control.served)
        if model in before:  # otherwise the load of its front has unloaded it as a former runtime
            change.unload(control, folder, model)
        left = set(control.served)
        assert model not in left
        required = {each for name in left - {model} for each in edges.get(name, ())}
        assert required & before - {model} <= left
        graph = ModelGraph.read(folder)
        owned = {each for each in graph.owned_by(model) if each in before}
        assert not owned & left - required


def complete(control: ServingControl, edges: Mapping[str, set[str]]) -> None:
    """Check that everything that a served model requires was loaded before it."""
    loaded = [step.split(" ")[0] for step in control.steps if "unloaded" not in step]
    for name in control.served:
        first = loaded.index(name)
        assert all(each in control.served and each in loaded[:first] for each in edges.get(name, ()))
