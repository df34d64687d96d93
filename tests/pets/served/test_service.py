"""The service with a fake engine: answers, batches and requests that are refused or expire."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.requests import TextRequest
from testing.waiting import Gate, until
from tests.pets.served.serving import MAX_BATCH, OUTPUTS, ask, running, texts
from tidal.errors import Cancelled, InvalidArgument, Unavailable
from tidal.pets.policies import Fixed


class TestAnswers:
    def test_every_row_is_answered_by_its_own_task(self, tmp_path: Path) -> None:
        with running(tmp_path, batching=Fixed(8)) as run:
            names = {f"t{classes}": classes for classes in range(2, 7)}
            for name, classes in names.items():
                run.tasks.add(name, classes, kind=("bitfit", "lora")[classes % 2])
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t2", *texts(3)))
            assert gate.reached.wait(10)  # the others wait for the engine and share a pass
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

    def test_only_requests_that_want_attention_get_it(self, tmp_path: Path) -> None:
        with running(tmp_path, batching=Fixed(8), attention=True) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)  # the others share a pass
            asking = TextRequest(*texts(4, 3), wanted=OUTPUTS | {"attention_received", "input_tokens"}, task="t")
            other = ask("t", *texts(6))
            run.ask(asking, other)
            assert run.counts("waiting_queries", 3)
            gate.open()
            assert asking.wait()["attention_received"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 0]]
            assert asking.wait()["input_tokens"].tolist() == [[4], [3]]
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
        ("request_", "message"),
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
    def test_an_invalid_request_is_refused_and_others_are_answered(
        self, tmp_path: Path, request_: Any, message: str
    ) -> None:
        with running(tmp_path) as run:
            run.tasks.add("tone", 3)
            run.tasks.add("other", 2)
            run.libraries[0].refresh()
            bad, good = request_(), ask("tone", "a")
            run.ask(bad, good)
            with pytest.raises(InvalidArgument) as caught:
                bad.wait()
            assert message in str(caught.value)
            assert good.wait()["logits"].shape == (1, 3)
            assert run.engine.batches == [[3]]
            assert run.metric("refused_queries_total") == bad.rows

    def test_a_query_whose_deadline_passed_in_the_queue_is_not_run(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            late, relaxed = ask("t", "a b", latency_ms=30), ask("t", "a b", latency_ms=20_000)
            run.ask(late, relaxed)
            time.sleep(0.1)
            gate.open()
            with pytest.raises(Unavailable, match="deadline of 30 ms cannot be met"):
                late.wait()
            assert relaxed.wait()["logits"].shape == (1, 2)
            assert sum(map(len, run.engine.batches)) == 2
            assert run.metric("refused_queries_total", reason="deadline") == 1

    @pytest.mark.parametrize("by_utility", [False, True])
    def test_queries_of_highest_utility_run_if_not_all_can_be_in_time(self, tmp_path: Path, by_utility: bool) -> None:
        # By the profile, every pass takes ten seconds: there is time for one.
        with running(tmp_path, milliseconds=10_000, by_utility=by_utility) as run:
            run.tasks.add("t", 2)
            run.tasks.add("u", 3)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            low = [ask("t", "a", latency_ms=15_000, utility=0.1) for _ in range(MAX_BATCH)]
            high = [ask("u", "a b c", latency_ms=15_000) for _ in range(MAX_BATCH)]
            run.ask(*low, *high)
            assert until(lambda: len(run.schedulers[0]) == 2 * MAX_BATCH)
            gate.open()
            for request in (*low, *high):
                request.wait()
            assert run.engine.batches[1] == [3 if by_utility else 2] * MAX_BATCH

    def test_a_cancelled_query_is_not_run(self, tmp_path: Path) -> None:
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
