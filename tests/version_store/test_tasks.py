"""Tasks reach the repositories that fetch them: added, replaced and removed, and never over another one's changes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.version_store.support import add_plain, contents, memory_store, quiet, send
from tests.version_store.test_interrupted import at_every_step
from tidal.errors import InvalidArgument, Unavailable
from tidal.manifest import FileRecord
from tidal.tasks.folder import tasks_folder
from tidal.tasks.record import TASK_FILE, TENSORS_FILE, TaskRecord, make_record
from tidal.version_store.store import VersionStore, open_store
from tidal.version_store.stored_version import TaskRevision
from tidal.version_store.task_transfer import fetch_tasks, publish_tasks


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    return memory_store() if request.param == "memory" else open_store(f"file://{tmp_path}/store")


def add(repository: Path, task: str, text: str, model: str = "m") -> None:
    """Add or replace a task, with a text for its tensors."""
    folder = tasks_folder(repository / model) / task
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record = make_record(TaskRecord, task, text.encode(), base="0" * 64, memory_bytes=1)
    (folder / TENSORS_FILE).write_bytes(text.encode())
    (folder / TASK_FILE).write_text(record.model_dump_json())


def remove(repository: Path, task: str) -> None:
    shutil.rmtree(tasks_folder(repository / "m") / task)


def texts(repository: Path, model: str = "m") -> dict[str, str]:
    """Text of each task."""
    return {path.parent.name: path.read_text() for path in tasks_folder(repository / model).glob(f"*/{TENSORS_FILE}")}


def publish(store: VersionStore, repository: Path, *, remove: bool = False) -> list[tuple[str, str, int]]:
    done = publish_tasks(store, repository, ["m"], quiet, remove=remove)
    return [(each.task, each.state, each.uploaded_bytes) for each in done]


def fetch(store: VersionStore, repository: Path) -> dict[str, str]:
    return {each.task: each.state for each in fetch_tasks(store, repository, ["m"], quiet)}


def two(tmp_path: Path) -> tuple[Path, Path]:
    """A repository to publish from, and one to fetch into, which have the model."""
    for name in "ab":
        add_plain(tmp_path / name, "m")
    return tmp_path / "a", tmp_path / "b"


def test_a_task_is_added_replaced_and_removed(store: VersionStore, tmp_path: Path) -> None:
    here, there = two(tmp_path)
    add(here, "x", "one")
    add(here, "y", "two")
    size = {
        name: sum(path.stat().st_size for path in (tasks_folder(here / "m") / name).iterdir()) for name in ("x", "y")
    }
    assert publish(store, here) == [("x", "published", size["x"]), ("y", "published", size["y"])]
    assert publish(store, here) == [("x", "published before", 0), ("y", "published before", 0)]
    assert fetch(store, there) == {"x": "fetched", "y": "fetched"}
    assert contents(tasks_folder(there / "m")) == contents(tasks_folder(here / "m"))
    assert fetch(store, there) == {"x": "here before", "y": "here before"}
    add(here, "x", "three")
    remove(here, "y")
    assert [row[:2] for row in publish(store, here)] == [("x", "published")]
    assert fetch(store, there) == {"x": "fetched", "y": "here before"}
    assert texts(there) == {"x": "three", "y": "two"}
    assert [row[:2] for row in publish(store, here, remove=True)] == [("x", "published before"), ("y", "removed")]
    assert [row[:2] for row in publish(store, here, remove=True)] == [("x", "published before")]
    assert fetch(store, there) == {"x": "here before", "y": "removed"}
    assert fetch(store, there) == {"x": "here before"}
    assert texts(there) == {"x": "three"}
    add(here, "y", "two")
    publish(store, here)
    assert fetch(store, there)["y"] == "fetched"
    assert not (there / ".fetch").exists()


def test_a_task_that_the_store_never_had_is_kept(store: VersionStore, tmp_path: Path) -> None:
    here, there = two(tmp_path)
    add(here, "x", "one")
    publish(store, here)
    add(there, "x", "mine")
    for text in ("one", "two"):
        add(here, "x", text)
        publish(store, here)
        assert fetch(store, there) == {"x": "kept"}
        assert texts(there) == {"x": "mine"}
    remove(here, "x")
    publish(store, here, remove=True)
    assert fetch(store, there) == {"x": "kept"}
    publish(store, there)  # what is kept can be published
    assert fetch(store, here) == {"x": "fetched"}
    assert texts(here) == {"x": "mine"}


def test_a_repository_that_missed_revisions_gets_the_last_one(store: VersionStore, tmp_path: Path) -> None:
    here, there = two(tmp_path)
    for text in ("one", "two", "three"):
        add(here, "x", text)
        publish(store, here)
        if text == "one":
            fetch(store, there)
    assert fetch(store, there) == {"x": "fetched"}
    assert texts(there) == {"x": "three"}


def test_two_publishers_of_one_task_have_a_revision_each(
    store: VersionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one has listed the store before the first one writes."""
    here, there = two(tmp_path)
    add(here, "x", "one")
    add(there, "x", "two")
    monkeypatch.setattr(store.tasks, "numbers", lambda _: {})
    publish(store, here)
    publish(store, there)
    monkeypatch.undo()
    assert store.tasks.numbers("m") == {"x": [1, 2]}
    assert fetch(store, here) == {"x": "fetched"}
    assert texts(here) == {"x": "two"}
    monkeypatch.setattr(type(store.tasks), "create", lambda *_: False)
    add(here, "x", "three")
    with pytest.raises(Unavailable, match="task 'x' of model 'm' is being changed by others: publish it again"):
        publish(store, here)


def test_a_damaged_task_is_not_published(store: VersionStore, tmp_path: Path) -> None:
    here, _ = two(tmp_path)
    add(here, "x", "one")
    folder = tasks_folder(here / "m") / "x"
    (folder / TENSORS_FILE).write_text("other")
    with pytest.raises(InvalidArgument, match=r"task 'x' is refused: task\.safetensors does not match its hash"):
        publish(store, here)
    (folder / TENSORS_FILE).unlink()
    with pytest.raises(InvalidArgument, match=r"task\.safetensors cannot be read"):
        publish(store, here)
    (folder / TASK_FILE).write_text("{}")
    (folder / TENSORS_FILE).write_text("one")
    with pytest.raises(InvalidArgument, match=r"task\.json is not valid: Field required"):
        publish(store, here)
    assert store.tasks.numbers("m") == {}


_FILE = {"path": TASK_FILE, "bytes": 1, "sha256": "0" * 64, "mode": 0o644}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"files": [{**_FILE, "path": "../../evil"}]}, "is not a path in a version"),
        ({"files": [_FILE]}, r"files must be task\.json and task\.safetensors, or none"),
        ({"files": [_FILE, {**_FILE, "path": "evil"}]}, r"files must be task\.json and task\.safetensors, or none"),
        ({"name": "../x"}, "is not a name of a task"),
        ({"model": "n"}, r"is revision 1 of task 'x' of model 'n', not of its own path"),
        ({"revision": 2}, r"is revision 2 of task 'x' of model 'm', not of its own path"),
        ({"format": 2}, "has format 2; this release reads format 1"),
        ({"links": {}}, "Extra inputs are not permitted"),
    ],
)
def test_a_document_that_is_not_accepted(
    store: VersionStore, tmp_path: Path, changes: Mapping[str, Any], expected: str
) -> None:
    here, there = two(tmp_path)
    add(here, "x", "one")
    publish(store, here)
    path = store._at("tasks/m/x/1.json")
    document = json.loads(store._files.cat_file(path)) | changes
    store._files.rm_file(path)
    store._files.pipe_file(path, json.dumps(document).encode())
    before = contents(there)
    with pytest.raises(InvalidArgument, match=expected):
        fetch(VersionStore(store._files, store._root, store.uri), there)
    assert contents(there) == before


def test_names_in_a_listing_that_are_no_revisions(store: VersionStore) -> None:
    for name in ("x/1.json", "x/02.json", "x/1.txt", ".y/1.json", "x/z/1.json", "1.json", "x/.1.json.ab"):
        path = store._at(f"tasks/m/{name}")
        store._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        store._files.pipe_file(path, b"{}")
    assert store.tasks.numbers("m") == {"x": [1]}
    assert store.tasks.numbers("none") == {}


def test_a_content_that_is_damaged_leaves_the_task_as_it_was(store: VersionStore, tmp_path: Path) -> None:
    here, there = two(tmp_path)
    add(here, "x", "one")
    publish(store, here)
    fetch(store, there)
    add(here, "x", "two")
    publish(store, here)
    tensors = next(each for each in store.tasks.read("m", "x", 2).files if each.path == TENSORS_FILE)
    store._files.pipe_file(store._at(store._blob(FileRecord(path="x", bytes=3, sha256=tensors.sha256))), b"twX")
    with pytest.raises(InvalidArgument, match=r"task\.safetensors' of task 'x' of model 'm' differs"):
        fetch(store, there)
    assert texts(there) == {"x": "one"}


@pytest.mark.slow
def test_a_fetch_that_is_killed_at_each_step_leaves_one_of_both_contents(
    tmp_path: Path,
) -> None:
    here, _ = two(tmp_path)
    add(here, "x", "one")
    uri = f"file://{tmp_path}/store"
    publish(open_store(uri), here)
    add_plain(tmp_path / "ready", "m")
    fetch(open_store(uri), tmp_path / "ready")
    add(here, "x", "two")
    add(here, "y", "new")
    publish(open_store(uri), here)

    def target(step: int) -> Path:
        return tmp_path / f"step{step}"

    for step in range(1, 100):  # in this process: the other one is killed
        shutil.copytree(tmp_path / "ready", target(step))

    def check(step: int) -> None:
        found = texts(target(step))
        assert found["x"] in ("one", "two")
        assert found.get("y", "new") == "new"
        fetch(open_store(uri), target(step))
        assert texts(target(step)) == {"x": "two", "y": "new"}
        assert not (target(step) / ".fetch").exists()

    assert at_every_step(lambda step: fetch(open_store(uri), target(step)), check) > 5


_CHANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(["1", "2", "", "publish", "fetch"])),
    max_size=20,
)


@given(_CHANGES)
@settings(max_examples=40, deadline=None)
def test_any_changes_end_alike_where_all_are_published(changes: list[tuple[str, str, str]]) -> None:
    """After any history, one repository publishes all, and a new one that fetches has the same tasks."""
    store = memory_store()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        two(folder)
        for repository, task, change in changes:
            here = folder / repository
            if change == "publish":
                publish(store, here, remove=True)
            elif change == "fetch":
                before = texts(here)
                states = fetch(store, here)
                kept = {task: before[task] for task, state in states.items() if state == "kept"}
                assert kept.items() <= texts(here).items()
            elif change:
                add(here, task, change)
            elif (tasks_folder(here / "m") / task).exists():
                remove(here, task)
        publish(store, folder / "a", remove=True)
        add_plain(folder / "c", "m")
        fetch(store, folder / "c")
        assert texts(folder / "c") == texts(folder / "a")


def test_a_version_and_its_tasks_do_not_depend_on_each_other(store: VersionStore, tmp_path: Path) -> None:
    """A task is published without a new version, and does not make the model's version another one."""
    here, _ = two(tmp_path)
    send(store, here, "m")
    add(here, "x", "one")
    assert [each.state for each in send(store, here, "m")] == ["published before"]
    publish(store, here)
    assert store.models() == ["m"]


def test_a_removed_task_has_no_files() -> None:
    assert TaskRevision(model="m", name="x", revision=1, files=()).content is None
