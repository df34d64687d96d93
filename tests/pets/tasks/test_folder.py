"""Tasks in folders: added, replaced and removed atomically, and refused with a reason if they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.small_base import KINDS, MADE, random_task, same_terms, small_base
from tidal.errors import InvalidArgument, NotFound
from tidal.pets.tasks.folder import PetsTask, add_task, copy_task, load_task
from tidal.tasks import folder
from tidal.tasks.folder import remove_task, scan
from tidal.tasks.names import unknown_task
from tidal.tasks.stored import Storage
from tidal.tensor_file import pack_tensors

BASE = small_base()


def add(tasks: Path, name: str = "mood", kind: str = "lora", **changed: Any) -> PetsTask:
    terms = random_task(kind, BASE, seed=changed.pop("seed", 0))
    return add_task(tasks, name, kind, terms, BASE, MADE, **changed)


def edit_info(tasks: Path, name: str = "mood", **changed: Any) -> None:
    path = tasks / name / "task.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


class TestAdding:
    @pytest.mark.parametrize("kind", KINDS)
    def test_round_trips(self, tmp_path: Path, kind: str) -> None:
        added = add(tmp_path / "tasks", kind=kind)
        found = load_task(tmp_path / "tasks", "mood", BASE)
        assert same_terms(found.terms, random_task(kind, BASE))
        assert same_terms(added.terms, found.terms, 0)
        assert found.info == added.info
        assert found.info.kind == kind
        assert found.info.labels == ("label 0", "label 1", "label 2")
        assert found.info.memory_bytes == found.terms.bytes
        assert found.info.tensors.bytes == (tmp_path / "tasks/mood/task.safetensors").stat().st_size

    def test_in_float16_takes_fewer_bytes(self, tmp_path: Path) -> None:
        whole, half = add(tmp_path), add(tmp_path, "half", storage=Storage(half=True))
        assert half.info.tensors.bytes < 0.8 * whole.info.tensors.bytes
        assert half.info.memory_bytes == whole.info.memory_bytes

    @pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", "..", "a b", "x" * 129, "naïve", "a\n"])
    def test_refuses_invalid_names(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(InvalidArgument, match="is not a valid task name; accepted: up to 128 letters"):
            add(tmp_path, name)
        assert not list(tmp_path.iterdir())

    def test_keeps_an_existing_task(self, tmp_path: Path) -> None:
        first = add(tmp_path)
        with pytest.raises(InvalidArgument, match="task 'mood' already exists"):
            add(tmp_path, seed=1)
        assert load_task(tmp_path, "mood", BASE).info == first.info

    def test_replaces_an_existing_task_on_request(self, tmp_path: Path) -> None:
        add(tmp_path)
        before = scan(tmp_path)
        second = add(tmp_path, seed=1, replace=True)
        assert load_task(tmp_path, "mood", BASE).info == second.info
        assert scan(tmp_path) != before
        assert [path.name for path in tmp_path.iterdir()] == ["mood"]

    def test_replaces_an_existing_task_without_renameat2(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        add(tmp_path)
        monkeypatch.setattr(folder.ctypes, "CDLL", lambda *_args, **_named: object())
        second = add(tmp_path, seed=1, replace=True)
        assert load_task(tmp_path, "mood", BASE).info == second.info
        assert [path.name for path in tmp_path.iterdir()] == ["mood"]

    def test_refuses_duplicate_labels(self, tmp_path: Path) -> None:
        terms = random_task("lora", BASE)
        twice = replace(terms, head=replace(terms.head, labels=("a", "b", "a")))
        with pytest.raises(
            InvalidArgument, match="task 'mood' cannot be stored: file: Value error, labels must differ"
        ):
            add_task(tmp_path, "mood", "lora", twice, BASE, MADE)

    def test_leaves_nothing_on_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_space(_root: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(folder, "sync_tree", no_space)
        with pytest.raises(OSError, match="No space"):
            add(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_copies_a_stored_task(self, tmp_path: Path) -> None:
        added = add(tmp_path / "one")
        assert copy_task(tmp_path / "two", "again", tmp_path / "one/mood", BASE).info == added.info
        assert load_task(tmp_path / "two", "again", BASE).info == added.info

    def test_refuses_a_stored_task_of_another_base(self, tmp_path: Path) -> None:
        add(tmp_path / "one")
        with pytest.raises(InvalidArgument, match="it was made for the base"):
            copy_task(tmp_path / "two", "again", tmp_path / "one/mood", small_base(1))
        assert not (tmp_path / "two").exists()

    def test_concurrently_under_one_name_succeeds_once(self, tmp_path: Path) -> None:
        outcomes: list[str] = []

        def one(seed: int) -> None:
            try:
                add(tmp_path, seed=seed)
                outcomes.append("added")
            except InvalidArgument:
                outcomes.append("refused")

        threads = [threading.Thread(target=one, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["added", *["refused"] * 7]
        assert [path.name for path in tmp_path.iterdir()] == ["mood"]


def test_old_staging_folders_are_removed(tmp_path: Path) -> None:
    for name, age in ((".staging-old", 4000), (".staging-new", 10)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, times=(time.time() - age,) * 2)
    add(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".staging-new", "mood"]


class TestChanging:
    def test_readers_never_see_a_partial_task(self, tmp_path: Path) -> None:
        """While tasks are replaced and removed, readers see a complete one."""
        add(tmp_path)
        stop, problems, seen = threading.Event(), [], 0

        def read() -> None:
            nonlocal seen
            while not stop.is_set():
                try:
                    for name in scan(tmp_path):
                        assert name in ("mood", "other")
                    load_task(tmp_path, "mood", BASE)
                    seen += 1
                except Exception as error:  # shown below
                    problems.append(error)
                    return

        reader = threading.Thread(target=read)
        reader.start()
        for seed in range(30):
            add(tmp_path, seed=seed, replace=True)
            add(tmp_path, "other")
            remove_task(tmp_path, "other")
        stop.set()
        reader.join()
        assert not problems
        assert seen

    def test_a_removed_task_is_unknown(self, tmp_path: Path) -> None:
        add(tmp_path)
        remove_task(tmp_path, "mood")
        assert not list(tmp_path.iterdir())
        with pytest.raises(NotFound, match="unknown task 'mood': the model has no tasks"):
            remove_task(tmp_path, "mood")

    @pytest.mark.parametrize("name", ["..", ".", "", "../mood", ".staging-1"])
    def test_refuses_to_remove_other_folders(self, tmp_path: Path, name: str) -> None:
        add(tmp_path / "tasks")
        add(tmp_path)
        with pytest.raises(NotFound, match="unknown task"):
            remove_task(tmp_path / "tasks", name)
        assert (tmp_path / "mood").is_dir()

    def test_scan_lists_complete_tasks_by_name(self, tmp_path: Path) -> None:
        assert scan(tmp_path / "absent") == {}
        for name in ("b", "a"):
            add(tmp_path, name)
        (tmp_path / ".staging-1").mkdir()
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").touch()
        assert list(scan(tmp_path)) == ["a", "b"]
        before = scan(tmp_path)
        assert scan(tmp_path) == before


class TestRefusing:
    def refused(self, tasks: Path) -> str:
        with pytest.raises(InvalidArgument) as caught:
            load_task(tasks, "mood", BASE)
        return str(caught.value)

    def test_an_unknown_task_is_refused_with_suggestions(self, tmp_path: Path) -> None:
        for name in ("mood", "moods", "topic"):
            add(tmp_path, name)
        with pytest.raises(InvalidArgument, match="unknown task 'mod': did you mean 'mood' or 'moods'"):
            load_task(tmp_path, "mod", BASE)

    def test_suggestions_list_few_of_many_tasks(self) -> None:
        known = [f"task{number}" for number in range(300)]
        assert str(unknown_task("zebra", known)).endswith(
            "accepted: task0, task1, task10, task100, task101 and 295 more"
        )

    def test_another_base(self, tmp_path: Path) -> None:
        add(tmp_path)
        with pytest.raises(InvalidArgument, match=r"task 'mood' is refused: it was made for the base \w{12}…"):
            load_task(tmp_path, "mood", small_base(1))

    @pytest.mark.parametrize(
        ("changed", "reason"),
        [
            ({"format": 2}, "format: Input should be 1"),
            ({"kind": "loro"}, "unknown kind 'loro': did you mean 'lora'"),
            ({"base": "x"}, "base: String should match pattern"),
            ({"labels": ["label 0", "label 1"]}, "'head/weight' has shape [3, 16]; accepted: [2, 16]"),
            ({"labels": ["a", "a", "b"]}, "labels must differ"),
            ({"labels": []}, "the head has 0 labels; a head of task classification needs labels"),
            (
                {"labels": ["LABEL_0"]},
                "the head has one label, 'LABEL_0', and the task classification; one output is a score",
            ),
            ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
            (
                {"tensors": {"path": "/etc/passwd", "bytes": 1, "sha256": "0"}},
                "tensors must be in task.safetensors",
            ),
            ({"kind": "bitfit"}, "is unknown to the kind bitfit at this layer"),
        ],
    )
    def test_an_invalid_task_json(self, tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
        add(tmp_path)
        edit_info(tmp_path, **changed)
        assert reason in self.refused(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"{}", b"\xff", b"null"])
    def test_a_task_json_of_another_format(self, tmp_path: Path, content: bytes) -> None:
        add(tmp_path)
        (tmp_path / "mood/task.json").write_bytes(content)
        assert "task.json is not valid: " in self.refused(tmp_path)

    def test_a_task_json_that_is_too_long(self, tmp_path: Path) -> None:
        add(tmp_path)
        (tmp_path / "mood/task.json").write_bytes(b" " * ((1 << 20) + 1))
        assert "accepted are at most 1048576" in self.refused(tmp_path)

    def test_a_file_that_is_too_long(self, tmp_path: Path) -> None:
        add(tmp_path)
        os.truncate(tmp_path / "mood/task.safetensors", 1 << 40)  # sparse, takes no disk space
        assert "accepted are at most" in self.refused(tmp_path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        add(tmp_path)
        (tmp_path / "mood/task.safetensors").unlink()
        assert "task.safetensors cannot be read: No such file" in self.refused(tmp_path)

    def test_a_pipe(self, tmp_path: Path) -> None:
        add(tmp_path)
        (tmp_path / "mood/task.safetensors").unlink()
        os.mkfifo(tmp_path / "mood/task.safetensors")
        assert "is not a regular file" in self.refused(tmp_path)

    def test_a_pickle(self, tmp_path: Path) -> None:
        add(tmp_path)
        trap = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
        write_tensors(tmp_path, trap)
        assert "is not a safetensors file" in self.refused(tmp_path)
        assert not (tmp_path / "ran").exists()

    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_a_damaged_file(self, tmp_path: Path, data: st.DataObject) -> None:
        """The hash detects every flipped bit and every truncation."""
        if not (tmp_path / "mood").exists():
            add(tmp_path)
        path = tmp_path / "mood/task.safetensors"
        whole = path.read_bytes()
        damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
        if len(damaged) == len(whole):
            damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(damaged)
        assert "task.safetensors does not match its size and hash in task.json" in self.refused(tmp_path)
        path.write_bytes(whole)
        load_task(tmp_path, "mood", BASE)

    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(KINDS), st.data())
    def test_a_hostile_file_with_its_own_hash(self, tmp_path: Path, kind: str, data: st.DataObject) -> None:
        """Flipped bits with a matching hash give either another task or a refusal."""
        task = add(tmp_path, kind=kind, replace=True)
        content = bytearray((tmp_path / "mood/task.safetensors").read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        write_tensors(tmp_path, bytes(content))
        try:
            found = load_task(tmp_path, "mood", BASE)
        except InvalidArgument as error:
            assert "task 'mood' is refused: " in str(error)
            return
        # A mask with flipped bits may have more positions, up to all of them.
        assert found.terms.bytes <= task.terms.bytes + sum(6 * each.weight.size for each in BASE.linear.values())
        for change in found.terms.linear.values():
            if change.bias is not None:
                assert np.isfinite(change.bias).all()

    def test_tensors_for_a_larger_base(self, tmp_path: Path) -> None:
        """Shapes are compared with the base before memory of their size is allocated."""
        add(tmp_path, kind="maskbert")
        tensors = {
            "head/weight": np.zeros((3, 16), np.float32),
            "head/bias": np.zeros(3, np.float32),
            "pooler.dense/gaps": np.full(64, 255, np.uint8),
        }
        write_tensors(tmp_path, pack_tensors(tensors))
        assert "tensor 'pooler.dense/gaps' reaches beyond the 256 weights" in self.refused(tmp_path)


def write_tensors(tasks: Path, content: bytes) -> None:
    """Replace the tensors of the task `mood`, with a matching hash in its `task.json`."""
    (tasks / "mood/task.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit_info(tasks, tensors={"path": "task.safetensors", "bytes": len(content), "sha256": digest})
