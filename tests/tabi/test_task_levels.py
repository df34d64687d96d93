"""Levels that are tasks of a shared encoder, without a server: their calls, and tasks that are removed,
replaced and added again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from testing.small_base import MADE, random_task, small_base
from tests.tabi.serving import FakeLevels, Request, cascades, raising, running, write_cascade
from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument, Unavailable
from tidal.pets.tasks.folder import add_task
from tidal.service import NEWEST
from tidal.tabi.levels import embedded_levels
from tidal.tabi.manifest import TabiManifest
from tidal.tasks.folder import remove_task, tasks_folder

BASE = small_base()


def add(repository: Path, model: str, seed: int = 0) -> str:
    """Add the task `mood` to a model, or replace it; its fingerprint."""
    terms = random_task("bitfit", BASE, seed=seed, classes=2)
    tasks = tasks_folder(repository / model)
    return add_task(tasks, "mood", "bitfit", terms, BASE, MADE, replace=(tasks / "mood").exists()).info.fingerprint


@pytest.fixture
def made(tmp_path: Path) -> TabiManifest:
    """The cascade `c`, both of whose levels are tasks named `mood`, each of its own model in the same repository."""
    folder = tmp_path / "c"
    plain = write_cascade(folder, cascades())
    levels = tuple(
        level.model_copy(update={"task": "mood", "fingerprint": add(tmp_path, level.model, seed)})
        for seed, level in enumerate(plain.levels)
    )
    return write_cascade(folder, cascades(), levels=levels)


def test_a_task_is_called_in_any_served_version(made: TabiManifest, tmp_path: Path) -> None:
    levels = FakeLevels()
    with running(tmp_path / "c", levels) as run:
        unsure = Request("unsure", task="another")
        run.submit(unsure)
        assert (unsure.one("level"), unsure.one("degraded")) == (2, False)
    assert [(call.model, call.version, call.task) for call in levels.calls] == [
        ("c_l0", NEWEST, "mood"),
        ("c_l1", NEWEST, "mood"),
    ]
    assert made.levels[0].task == "mood"


def test_a_model_with_tasks_is_neither_embedded_nor_owned_by_the_cascade(made: TabiManifest, tmp_path: Path) -> None:
    assert embedded_levels(tmp_path, made, "embedded", (0, 1)) == ()
    graph = ModelGraph.read(tmp_path)
    assert (graph.requires("c"), graph.owned_by("c")) == (("c_l0", "c_l1"), ())
    one_base = tuple(level.model_copy(update={"model": "base"}) for level in made.levels)
    write_cascade(tmp_path / "d", cascades(), levels=one_base)
    assert (graph.requires("d"), graph.owned_by("d")) == (("base",), ())


@pytest.mark.usefixtures("made")
def test_a_removed_or_replaced_task_is_not_called(tmp_path: Path) -> None:
    levels = FakeLevels()
    with running(tmp_path / "c", levels) as run:
        remove_task(tasks_folder(tmp_path / "c_l0"), "mood")
        gone = Request("sure")
        run.submit(gone)
        with pytest.raises(
            Unavailable, match=r"level 1, model 'c_l0', task 'mood': .*unknown task 'mood'.*add it again"
        ):
            gone.wait()
        add(tmp_path, "c_l0", seed=5)
        other = Request("sure")
        run.submit(other)
        with pytest.raises(Unavailable, match="differs from the one that the cascade was built with; rebuild with `"):
            other.wait()
        assert not levels.calls
        add(tmp_path, "c_l0", seed=0)
        back = Request("sure")
        run.submit(back)
        assert (back.one("level"), back.one("degraded")) == (1, False)
        add(tmp_path, "c_l0", seed=5)
        again = Request("sure")
        run.submit(again)
        with pytest.raises(Unavailable, match="differs from the one"):
            again.wait()


@pytest.mark.usefixtures("made")
def test_other_levels_answer_in_place_of_a_removed_or_replaced_task(tmp_path: Path) -> None:
    levels = FakeLevels()
    with running(tmp_path / "c", levels, on_first_level_failure="next") as run:
        remove_task(tasks_folder(tmp_path / "c_l1"), "mood")
        both = Request("sure", "unsure")
        run.submit(both)
        assert both.wait()["degraded"].ravel().tolist() == [False, True]
        assert both.wait()["level"].ravel().tolist() == [1, 1]
        add(tmp_path, "c_l1", seed=1)
        add(tmp_path, "c_l0", seed=5)
        by_the_next = Request("sure")
        run.submit(by_the_next)
        assert (by_the_next.one("level"), by_the_next.one("degraded")) == (2, True)


@pytest.mark.usefixtures("made")
def test_a_task_that_its_model_rejects_is_not_a_client_error(tmp_path: Path) -> None:
    levels = FakeLevels()
    levels.before["c_l0"] = raising(InvalidArgument("task 'mood' is refused: it is damaged"))
    with running(tmp_path / "c", levels) as run:
        request = Request("sure")
        run.submit(request)
        with pytest.raises(Unavailable, match="task 'mood': task 'mood' is refused: it is damaged"):
            request.wait()


def test_a_model_in_another_repository_is_called_unchecked(made: TabiManifest, tmp_path: Path) -> None:
    for level in made.levels:
        shutil.rmtree(tmp_path / level.model)
    with running(tmp_path / "c", FakeLevels()) as run:
        request = Request("sure")
        run.submit(request)
        assert request.one("level") == 1


def test_a_fingerprint_depends_on_the_weights_of_a_task(tmp_path: Path) -> None:
    first, again, other = (add(tmp_path, "m", seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
