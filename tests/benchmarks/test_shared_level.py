"""Cascades over one small model against cascades with one each: what is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compositions.shared_prepare import (
    BASE,
    CASCADE,
    OWN,
    SHARED,
    SMALL,
    TASK,
    BuiltArtefacts,
    model,
    write_system,
)
from testing.small_base import MADE, random_task, small_base
from tests.serve.folders import add
from tests.serve.partitioned import publish_partitioned
from tests.tabi.serving import VERSION, cascades, write_cascade
from tidal.catalog.graph import ModelGraph
from tidal.pets.tasks.folder import add_task
from tidal.tabi.manifest import load_tabi_manifest
from tidal.tasks.folder import scan, tasks_folder


@pytest.fixture
def artefacts(tmp_path: Path) -> BuiltArtefacts:
    """Manifests as a build would publish them, without engines."""
    repository = tmp_path / "built"
    base = small_base()
    add(repository, BASE, 1, backend="pets")
    tasks = tasks_folder(repository / BASE)
    task = add_task(tasks, TASK, "bitfit", random_task("bitfit", base, classes=2), base, MADE)
    for name in (SMALL, f"{CASCADE}_l1"):
        publish_partitioned(repository, name, [64], placement="polymorphic")
    made = write_cascade(repository / CASCADE, cascades())
    shared = {"model": BASE, "task": TASK, "fingerprint": task.info.fingerprint}
    large = {"model": f"{CASCADE}_l1", "version": 1}
    levels = tuple(level.model_copy(update=own) for level, own in zip(made.levels, (shared, large), strict=True))
    write_cascade(repository / CASCADE, cascades(), levels=levels)
    add(repository, CASCADE, backend="tabi")
    return BuiltArtefacts(repository, "0")


def test_systems_differ_in_their_small_levels_alone(artefacts: BuiltArtefacts, tmp_path: Path) -> None:
    fronts = {}
    for system in (OWN, SHARED):
        write_system(tmp_path / system, artefacts, system, 2)
        fronts[system] = load_tabi_manifest(tmp_path / system / model(1) / str(VERSION))
    assert fronts[OWN].candidates == fronts[SHARED].candidates
    assert [(level.model, level.task) for level in fronts[SHARED].levels] == [
        (BASE, f"{TASK}_1"),
        ("cascade_1_l1", None),
    ]
    assert [(level.model, level.task) for level in fronts[OWN].levels] == [
        ("cascade_1_l0", None),
        ("cascade_1_l1", None),
    ]
    assert set(scan(tasks_folder(tmp_path / SHARED / BASE))) == {f"{TASK}_0", f"{TASK}_1"}
    assert not (tmp_path / OWN / BASE).exists()
    shared, own = ModelGraph.read(tmp_path / SHARED), ModelGraph.read(tmp_path / OWN)
    assert (shared.requires(model(0)), shared.owned_by(model(0))) == ((BASE,), ("cascade_0_l1",))
    assert (own.requires(model(0)), own.owned_by(model(0))) == ((), ("cascade_0_l0", "cascade_0_l1"))
