"""The service with a fake engine while tasks load, change and leave, and the merged copies of hot tasks."""

from __future__ import annotations

import shutil
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from testing.waiting import Gate, until
from tests.pets.served.serving import ask, running
from tidal.errors import InvalidArgument
from tidal.tasks.folder import remove_task


class TestTasks:
    def test_loading_a_task_does_not_delay_others(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("slow", 5)
            run.tasks.add("fast", 2)
            gate = Gate()
            run.engine.adding = lambda terms: gate(0) if len(terms.head.labels) == 5 else None
            slow, fast = ask("slow", "a", "b"), ask("fast", "a")
            run.ask(slow, fast)
            assert fast.wait()["logits"].shape == (1, 2)
            assert not slow.answered
            assert run.counts("waiting_for_task_queries", 2)
            gate.open()
            assert slow.wait()["logits"].shape == (2, 5)
            assert run.counts("waiting_for_task_queries", 0)

    def test_a_new_task_serves_at_once_and_a_removed_one_answers_accepted_requests(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            unknown = ask("t", "a")
            run.ask(unknown)
            with pytest.raises(InvalidArgument, match="the model has no tasks"):
                unknown.wait()
            run.tasks.add("t", 3)
            gate = Gate(first=1)
            run.engine.before = gate
            first = ask("t", "a")
            run.ask(first)
            assert first.wait()["logits"].shape == (1, 3)
            running_, queued = ask("t", "a"), ask("t", "a b")
            run.ask(running_)
            assert gate.reached.wait(10)
            run.ask(queued)
            assert run.counts("waiting_queries", 1)
            remove_task(run.tasks.folder, "t")
            run.libraries[0].refresh()
            after = ask("t", "a")
            run.ask(after)
            with pytest.raises(InvalidArgument, match="unknown task 't'"):
                after.wait()
            gate.open()
            assert running_.wait()["logits"].shape == queued.wait()["logits"].shape == (1, 3)
            assert until(lambda: [task.removed for task in run.engine.tasks] == [True])

    def test_a_changed_task_is_reloaded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidal.tasks.intake._SCAN_S", 0.05)
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            before = ask("t", "a")
            run.ask(before)
            assert before.wait()["logits"].shape == (1, 3)
            run.tasks.add("t", 4, replace=True)

            def classes() -> int:
                request = ask("t", "a")
                run.ask(request)
                return int(request.wait()["logits"].shape[1])

            assert until(lambda: classes() == 4)

    def test_a_task_folder_copied_by_hand_serves_once_it_is_complete(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            for file in ("task.json", "task.safetensors"):
                (run.tasks.folder / "copy").mkdir(exist_ok=True)
                shutil.copy(run.tasks.folder / "t" / file, run.tasks.folder / "copy" / file)
                run.libraries[0].refresh()
                request = ask("copy", "a")
                run.ask(request)
                if file == "task.json":
                    with pytest.raises(InvalidArgument, match="task 'copy' is refused"):
                        request.wait()
            assert request.wait()["logits"].shape == (1, 3)

    def test_tasks_are_evicted_to_keep_the_memory_budget(self, tmp_path: Path) -> None:
        with running(tmp_path) as probe:
            size = probe.tasks.add("t", 6).bytes
        with running(tmp_path / "small", budget=size) as run:
            for classes in range(2, 7):
                run.tasks.add(f"t{classes}", classes)
            requests = [ask(f"t{2 + number % 5}", "a") for number in range(40)]
            for request in requests:
                run.ask(request)
            for number, request in enumerate(requests):
                assert request.wait()["logits"].shape == (1, 2 + number % 5)
            assert until(lambda: sum(not task.removed for task in run.engine.tasks) <= 1)
            run.libraries[0].refresh()
            assert run.metric("task_evictions_total") >= 4
            assert run.metric("task_bytes") <= run.metric("task_budget_bytes") == size

    def test_a_task_that_cannot_be_loaded_fails_all_waiting_requests(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            file = run.tasks.folder / "t" / "task.safetensors"
            file.write_bytes(file.read_bytes()[:-1])
            requests = [ask("t", "a") for _ in range(3)]
            run.ask(*requests)
            for request in requests:
                with pytest.raises(InvalidArgument, match="task 't' is refused"):
                    request.wait()
            assert run.metric("refused_queries_total", reason="task") == 3


class TestCopies:
    def test_a_hot_task_has_a_copy_of_its_current_version_until_it_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr("tidal.pets.copies._CHOOSE_S", 0.05)
        # Every task with arrivals gets a copy.
        monkeypatch.setattr(
            "tidal.pets.copies.choose_copies",
            lambda loads, *_: frozenset(load.task for load in loads if load.task == "t"),
        )
        with running(tmp_path, merged_copies=1, terms_ms=2.0) as run:
            run.tasks.add("t", 3)
            run.tasks.add("other", 2)

            def classes() -> int:
                requests = ask("t", "a"), ask("other", "a")
                run.ask(*requests)
                assert requests[1].wait()["logits"].shape == (1, 2)
                np.testing.assert_allclose(requests[0].wait()["logits"][0], run.tasks.logits("t", 3), rtol=1e-5)
                return int(requests[0].wait()["logits"].shape[1])

            assert until(lambda: classes() == 3 and run.metric("merged_queries_total") > 0)
            assert set(chain(*run.copies[0].batches)) == {3}
            assert run.metric("merged_copies") == 1
            run.tasks.add("t", 4, replace=True)
            run.libraries[0].refresh()
            assert until(lambda: classes() == 4 and any(4 in batch for each in run.copies for batch in each.batches))
            assert set(chain(*run.copies[0].batches)) == {3}
            assert "task 't' no longer has a merged copy: the task was changed" in caplog.text
            assert caplog.text.count("task 't' now runs from a merged copy") == 2
            remove_task(run.tasks.folder, "t")
            run.libraries[0].refresh()
            assert run.counts("merged_copies", 0)

    def test_a_failed_copy_is_not_tried_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidal.pets.copies._CHOOSE_S", 0.02)
        monkeypatch.setattr("tidal.pets.copies.choose_copies", lambda loads, *_: frozenset(load.task for load in loads))
        attempts = []

        def fail() -> None:
            attempts.append(time.monotonic())
            raise MemoryError("no room")

        with running(tmp_path, merged_copies=1, copying=fail) as run:
            run.tasks.add("t", 3)

            def classes() -> int:
                request = ask("t", "a")
                run.ask(request)
                return int(request.wait()["logits"].shape[1])

            assert until(lambda: classes() == 3 and len(attempts) == 1)
            time.sleep(0.1)  # several periods
            assert classes() == 3
            assert len(attempts) == 1
            assert run.metric("service_restarts_total") == run.metric("merged_copies") == 0
            remove_task(run.tasks.folder, "t")
            run.libraries[0].refresh()
            assert until(lambda: [task.removed for task in run.engine.tasks] == [True])

    def test_no_copies_are_made_by_default(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            request = ask("t", "a")
            run.ask(request)
            assert request.wait()["logits"].shape == (1, 3)
            assert run.copies == []
