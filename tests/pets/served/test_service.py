"""The service with a hand-made engine: which task answers a row, and what holds up or harms whom."""

from __future__ import annotations

import shutil
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.requests import TextRequest
from testing.waiting import Gate, until
from tests.pets.served.serving import MAX_BATCH, OUTPUTS, Running, ask, running
from tidal.errors import Cancelled, Internal, InvalidArgument, TidalError, Unavailable
from tidal.pets.policies import Fixed
from tidal.tasks.folder import remove_task
from tidal.triton.keeper import ServiceKeeper


def texts(*lengths: int) -> list[str]:
    """Texts of so many tokens, [CLS] and [SEP] included."""
    return [" ".join(["a"] * (length - 2)) for length in lengths]


class TestAnswers:
    def test_every_row_is_answered_by_its_own_task(self, tmp_path: Path) -> None:
        with running(tmp_path, batching=Fixed(8)) as run:
            names = {f"t{classes}": classes for classes in range(2, 7)}
            for name, classes in names.items():
                run.tasks.add(name, classes, kind=("bitfit", "lora")[classes % 2])
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t2", *texts(3)))
            assert gate.reached.wait(10)  # the others wait for the engine, and share a pass
            requests = {name: ask(name, *texts(4, 16, 5)) for name in names}
            run.ask(*requests.values())
            assert run.counts("waiting_queries", 15)
            gate.open()
            for name, request in requests.items():
                outputs, head = request.wait(), run.tasks.terms[name].head
                expected = np.stack([run.tasks.logits(name, length) for length in (4, 16, 5)])
                np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5)
                np.testing.assert_allclose(outputs["probabilities"].sum(1), 1, rtol=1e-5)
                assert outputs["label"].ravel().tolist() == [head.labels[i].encode() for i in expected.argmax(1)]
                assert request.answers == 1
            assert [len(batch) for batch in run.engine.batches] == [1, 8, 7]
            assert len(set(run.engine.batches[1])) > 1
            assert run.counts("batch_distinct_tasks_sum", 1 + sum(len(set(each)) for each in run.engine.batches[1:]))
            assert run.counts("batch_distinct_kinds_count", 3)
            assert run.counts("executed_queries_total", 6, kind="lora")
            assert run.counts("executed_queries_total", 10, kind="bitfit")
            assert run.metric("padded_tokens_total") == 3 + 16 * 15

    def test_attention_goes_to_those_who_ask(self, tmp_path: Path) -> None:
        with running(tmp_path, batching=Fixed(8), attention=True) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)  # the others share a pass
            asking = TextRequest(*texts(4, 3), wanted=OUTPUTS | {"attention_received"}, task="t")
            other = ask("t", *texts(6))
            run.ask(asking, other)
            assert run.counts("waiting_queries", 3)
            gate.open()
            assert asking.wait()["attention_received"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 0]]
            expected = np.stack([run.tasks.logits("t", length) for length in (4, 3)])
            np.testing.assert_allclose(asking.wait()["logits"], expected, rtol=1e-5)
            assert set(other.wait()) == OUTPUTS
            assert [len(batch) for batch in run.engine.batches] == [1, 3]

    def test_the_next_batch_is_planned_while_one_runs(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            planned = threading.Event()
            prepare = run.schedulers[0].prepare
            run.schedulers[0].prepare = lambda: (prepare(), planned.set())  # type: ignore[assignment]
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            run.ask(ask("t", "a b"))
            found = planned.wait(10)
            gate.open()
            assert found


class TestRequests:
    @pytest.mark.parametrize(
        ("request_", "said"),
        [
            (lambda: ask(None, "a"), "names no task in its option 'task'; accepted: other, tone"),
            (lambda: ask("tune", "a"), "unknown task 'tune': did you mean 'tone'?"),
            (lambda: ask("../../etc", "a"), "unknown task"),
            (lambda: ask("tone", ""), "text_input row 0 is empty"),
            (lambda: ask("tone", *texts(17)), "17 tokens; this model reads at most 16"),
            (
                lambda: TextRequest(
                    inputs={
                        "input_ids": np.array([[2, 5, 5, 3]], np.int64),
                        "attention_mask": np.array([[1, 0, 1, 1]], np.int64),
                    },
                    wanted=OUTPUTS,
                    task="tone",
                ),
                "attention_mask row 0 has a 0 before its last 1",
            ),
        ],
    )
    def test_what_cannot_be_read_is_said_and_harms_nobody(self, tmp_path: Path, request_: Any, said: str) -> None:
        with running(tmp_path) as run:
            run.tasks.add("tone", 3)
            run.tasks.add("other", 2)
            run.libraries[0].refresh()
            bad, good = request_(), ask("tone", "a")
            run.ask(bad, good)
            with pytest.raises(InvalidArgument) as caught:
                bad.wait()
            assert said in str(caught.value)
            assert good.wait()["logits"].shape == (1, 3)
            assert run.engine.batches == [[3]]
            assert run.metric("refused_queries_total") == bad.rows

    def test_a_deadline_that_passed_in_the_queue_is_reported_and_the_query_not_run(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            late, patient = ask("t", "a b", latency_ms=30), ask("t", "a b", latency_ms=20_000)
            run.ask(late, patient)
            time.sleep(0.1)
            gate.open()
            with pytest.raises(Unavailable, match="deadline of 30 ms cannot be met"):
                late.wait()
            assert patient.wait()["logits"].shape == (1, 2)
            assert sum(map(len, run.engine.batches)) == 2
            assert run.metric("refused_queries_total", reason="deadline") == 1

    @pytest.mark.parametrize("by_utility", [False, True])
    def test_where_not_all_can_be_in_time_the_highest_utility_runs(self, tmp_path: Path, by_utility: bool) -> None:
        # A pass takes ten seconds by the profile, whatever it holds: there is time for one.
        with running(tmp_path, milliseconds=10_000, by_utility=by_utility) as run:
            run.tasks.add("t", 2)
            run.tasks.add("u", 3)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            cheap = [ask("t", "a", latency_ms=15_000, utility=0.1) for _ in range(MAX_BATCH)]
            dear = [ask("u", "a b c", latency_ms=15_000) for _ in range(MAX_BATCH)]
            run.ask(*cheap, *dear)
            assert until(lambda: len(run.schedulers[0]) == 2 * MAX_BATCH)
            gate.open()
            for request in (*cheap, *dear):
                request.wait()
            assert run.engine.batches[1] == [3 if by_utility else 2] * MAX_BATCH

    def test_a_withdrawn_query_is_not_run(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            gone = ask("t", "a")
            run.ask(gone)
            gone.withdrawn = True
            time.sleep(0.1)  # it is not asked about before
            gate.open()
            with pytest.raises(Cancelled):
                gone.wait()
            assert len(run.engine.batches) == 1


class TestTasks:
    def test_a_task_that_loads_does_not_hold_up_others(self, tmp_path: Path) -> None:
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

    def test_a_new_task_serves_at_once_and_a_removed_one_answers_what_it_took(self, tmp_path: Path) -> None:
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

    def test_a_changed_task_is_found_by_itself(self, tmp_path: Path) -> None:
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

    def test_a_folder_that_is_copied_by_hand_serves_once_it_is_whole(self, tmp_path: Path) -> None:
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

    def test_tasks_leave_for_others_and_none_is_kept_too_long(self, tmp_path: Path) -> None:
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


class TestFailures:
    def test_an_engine_that_raises_costs_its_batch_alone(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)

            def fail(number: int) -> None:
                if number == 0:
                    raise RuntimeError("no memory")

            run.engine.before = fail
            first, second = ask("t", "a"), ask("t", "a")
            run.ask(first)
            with pytest.raises(Internal, match="the engine failed: no memory"):
                first.wait()
            run.ask(second)
            assert second.wait()["logits"].shape == (1, 2)
            assert run.metric("service_restarts_total") == 0

    def test_a_service_that_fails_is_replaced_and_serves_all_tasks(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            for classes in (2, 3):
                run.tasks.add(f"t{classes}", classes)

            def end(number: int) -> None:
                if number == 1:
                    raise SystemExit("a thread ends")

            run.engine.before = end
            first, lost = ask("t2", "a"), ask("t3", "a")
            run.ask(first)
            first.wait()
            run.ask(lost)
            with pytest.raises(TidalError, match="a thread ends"):
                lost.wait()
            assert run.counts("service_restarts_total", 1)

            def classes_of(task: str) -> int:
                request = ask(task, "a")
                run.ask(request)
                try:
                    return int(request.wait()["logits"].shape[1])
                except Unavailable:  # it is still being started
                    return 0

            assert until(lambda: [classes_of(task) for task in ("t2", "t3")] == [2, 3])

    def test_a_runner_that_fails_leaves_nothing_to_the_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reported, go_on = threading.Event(), threading.Event()
        report = ServiceKeeper._failed

        def hold(keeper: Any, life: Any, error: BaseException) -> None:
            reported.set()
            assert go_on.wait(20)
            report(keeper, life, error)

        monkeypatch.setattr(ServiceKeeper, "_failed", hold)
        with running(tmp_path, batching=Fixed(2)) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            run.ask(*(ask("t", "a", "a b") for _ in range(4)))
            assert run.counts("waiting_queries", 8)

            def fail(_now: float) -> None:
                del run.schedulers[0].next_batch  # only this once
                raise RuntimeError("no plan")

            run.schedulers[0].next_batch = fail  # type: ignore[method-assign, assignment]
            gate.open()
            assert reported.wait(10)
            # Nobody has answered for the failure yet: the other runner ends, and runs nothing of what waits.
            assert until(lambda: sum(each.name == "p-runner" for each in threading.enumerate()) == 1, 10)
            assert len(run.engine.batches) == 1
            between = ask("t", "a")
            run.ask(between)
            with pytest.raises(Unavailable, match="stops serving here"):
                between.wait()
            go_on.set()
            for request in run.open[:-1]:
                with pytest.raises(Internal, match="the model failed: RuntimeError: no plan"):
                    request.wait()
            assert until(lambda: self._serves(run, "t"))
            assert [request.answers for request in run.open] == [1] * len(run.open)
        assert run.metric("service_restarts_total") == 1

    @staticmethod
    def _serves(run: Running, task: str) -> bool:
        request = ask(task, "a")
        run.ask(request)
        try:
            return request.wait() is not None
        except Unavailable:  # it is still being started
            return False

    def test_what_was_taken_is_answered_at_the_end(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.adding = lambda _terms: gate(0)
            requests = [ask("t", *texts(3, 4)) for _ in range(8)]
            run.ask(*requests)
            closing = threading.Thread(target=run.keeper.close, args=(10,))
            closing.start()
            gate.open()
            closing.join(20)
            assert [request.wait()["logits"].shape for request in requests] == [(2, 2)] * 8
            assert until(lambda: all(task.removed for task in run.engine.tasks))


class TestCopies:
    def test_a_hot_task_gets_a_copy_of_its_present_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
            assert until(
                lambda: classes() == 4 and any(4 in batch for each in run.copies for batch in each.batches), 10
            )
            assert set(chain(*run.copies[0].batches)) == {3}

    def test_a_copy_that_cannot_be_made_costs_an_attempt(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            time.sleep(0.2)  # several looks
            assert classes() == 3
            assert len(attempts) == 1
            assert run.metric("service_restarts_total") == run.metric("merged_copies") == 0
            remove_task(run.tasks.folder, "t")
            run.libraries[0].refresh()
            assert until(lambda: [task.removed for task in run.engine.tasks] == [True])

    def test_without_copies_nobody_asks_for_them(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            request = ask("t", "a")
            run.ask(request)
            assert request.wait()["logits"].shape == (1, 3)
            assert run.copies == []
