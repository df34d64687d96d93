"""The service with a fake transformer: answers, refused and expired requests, changes of tasks, and failures."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from testing.requests import TextRequest, column
from testing.waiting import Gate, until
from tests.otas.photos import encoded, photo
from tests.otas.served.serving import GAMMA, MANIFEST, Scripted, ask, pixels, running
from tidal.errors import Cancelled, Internal, InvalidArgument, TidalError, Unavailable
from tidal.otas.reading import read_images
from tidal.tasks.folder import remove_task


class TestAnswers:
    @pytest.mark.parametrize("readers", [1, 3])
    def test_every_row_is_answered_by_its_own_task_at_its_batchs_gamma(self, tmp_path: Path, readers: int) -> None:
        with running(tmp_path, partial(Scripted, (0, GAMMA, -1), 5), readers=readers) as run:
            names = [f"t{classes}" for classes in range(2, 6)]
            for classes, name in enumerate(names, 2):
                run.tasks.add(name, classes)
            gate = Gate()
            run.transformer.before = gate
            run.ask(ask(names[0], 0.5))
            assert gate.reached.wait(10)  # the others wait for the engine and share batches
            requests = {name: ask(name, 1.0, 2.0, 3.0) for name in names}
            run.ask(*requests.values())
            assert run.counts("waiting_queries", 12)
            gate.open()
            ran = set()
            for name, request in requests.items():
                outputs, labels = request.wait(), run.tasks.parameters[name].labels
                gammas = outputs["gamma"].ravel().tolist()
                expected = [
                    run.tasks.logits(name, gamma, value) for gamma, value in zip(gammas, (1, 2, 3), strict=True)
                ]
                np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(outputs["probabilities"].sum(1), 1, rtol=1e-5)
                assert outputs["label"].ravel().tolist() == [labels[int(np.argmax(row))].encode() for row in expected]
                assert (outputs["queue_ms"] > 0).all()
                assert outputs["input_tokens"].tolist() == [[MANIFEST.tokens]] * 3
                assert {outputs[each].dtype.name for each in ("logits", "probabilities", "queue_ms")} == {"float32"}
                assert outputs["gamma"].dtype == np.int32
                ran.add(tuple(gammas))
            assert [(gamma, len(values)) for gamma, values in run.transformer.batches] == [
                (0, 1), (GAMMA, 5), (-1, 5), (0, 2),
            ]  # fmt: skip
            assert any(len(set(each)) > 1 for each in ran)  # a request's rows need not run together
            assert run.counts("outcomes_total", 13, outcome="in_time")
            assert run.metric("executed_queries_total", gamma="2") == 5
            assert run.metric("batches_total") == run.metric("decision_seconds_count") == 4
            assert run.metric("predicted_seconds_total") == 4 * 0.5

    def test_an_encoded_image_is_decoded_by_the_models_config(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            grey = Image.fromarray(np.full((9, 5), 51, np.uint8))
            request = ask("t", 0, inputs={"image": column([encoded(grey)])})
            run.ask(request)
            np.testing.assert_allclose(request.wait()["logits"][0], run.tasks.logits("t", 0, -0.6), rtol=1e-5)

    def test_only_encoded_images_are_left_to_reader_threads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        readers: dict[str, str] = {}

        def read(inputs: Any, *others: Any) -> Any:
            readers.update(dict.fromkeys(inputs, threading.current_thread().name))
            return read_images(inputs, *others)

        monkeypatch.setattr("tidal.otas.service.read_images", read)
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            grey = Image.fromarray(np.full((9, 5), 51, np.uint8))
            requests = [ask("t", 0, inputs={"image": column([encoded(grey)])}), ask("t", 1.0)]
            run.ask(*requests)
            for request in requests:
                request.wait()
        assert readers == {"image": "v-reader", "pixel_values": threading.current_thread().name}

    def test_only_requested_outputs_are_computed(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 3)
            request = ask("t", 1.0)
            request.wanted = frozenset({"gamma"})
            run.ask(request)
            assert set(request.wait()) == {"gamma"}


class TestRequests:
    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (lambda: ask(None, 1.0), "names no task in its option 'task'; accepted: other, tone"),
            (lambda: ask("tune", 1.0), "unknown task 'tune': did you mean 'tone'?"),
            (lambda: ask("tone", 1.0, inputs={}), "has neither image nor pixel_values; accepted: one of them"),
            (
                lambda: ask("tone", 1.0, inputs={"image": column([b""]), "pixel_values": pixels(1.0)}),
                "has both image and pixel_values; accepted: one of them",
            ),
            (
                lambda: ask("tone", 1.0, 2.0, inputs={"image": column([encoded(photo(8, 8)), b"nothing"])}),
                "image row 1 is damaged or not an image; accepted: JPEG, PNG and WebP",
            ),
            (
                lambda: ask("tone", 1.0, inputs={"image": np.array([[b"a", b"b"]], object)}),
                "image has shape [1, 2]; accepted: [rows, 1]",
            ),
            (
                lambda: ask("tone", 1.0, inputs={"pixel_values": np.zeros((1, 3, 4, 4), np.float32)}),
                "pixel_values has shape [1, 3, 4, 4]; accepted: [rows, 1, 4, 4]",
            ),
            (
                lambda: ask("tone", 1.0, float("nan")),
                "pixel_values row 1 has values that are not finite",
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
            bad, good = request_(), ask("tone", 1.0)
            run.ask(bad, good)
            with pytest.raises(InvalidArgument) as caught:
                bad.wait()
            assert message in str(caught.value)
            assert good.wait()["logits"].shape == (1, 3)
            assert run.transformer.batches == [(0, [1.0])]
            assert run.metric("refused_queries_total") == bad.rows
            assert run.counts("outcomes_total", 1)  # refused ones were never admitted

    def test_a_query_without_a_deadline_gets_the_default(self, tmp_path: Path) -> None:
        with running(tmp_path, default_latency_s=0.03) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.transformer.before = gate
            run.ask(ask("t", 1.0, latency_ms=20_000))
            assert gate.reached.wait(10)
            plain, relaxed = ask("t", 2.0), ask("t", 3.0, latency_ms=20_000)
            run.ask(plain, relaxed)
            time.sleep(0.1)
            gate.open()
            with pytest.raises(Unavailable, match=r"deadline of 30 ms cannot be met: \d+ ms have passed in the queue"):
                plain.wait()
            assert relaxed.wait()["gamma"].tolist() == [[0]]

    def test_an_evicted_query_fails_its_request_and_is_counted(self, tmp_path: Path) -> None:
        with running(tmp_path, partial(Scripted, (0,), 2)) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.transformer.before = gate
            run.ask(ask("t", 1.0, 1.0, utility=0.25))
            assert gate.reached.wait(10)
            late, relaxed = ask("t", 2.0, 3.0, 4.0, latency_ms=30, utility=0.5), ask("t", 5.0)
            run.ask(late, relaxed)
            time.sleep(0.1)
            gate.open()
            with pytest.raises(Unavailable, match="deadline of 30 ms"):
                late.wait()
            relaxed.wait()
            assert run.transformer.batches == [(0, [1.0, 1.0]), (0, [5.0])]
            assert run.counts("outcomes_total", 3, outcome="evicted")
            assert run.counts("outcomes_total", 3, outcome="in_time")
            assert run.metric("utility_total", outcome="evicted") == 1.5
            assert run.metric("utility_total", outcome="in_time") == 1.5  # two of 0.25, one of 1, the default

    def test_a_request_with_an_evicted_query_is_not_run(self, tmp_path: Path) -> None:
        """Neither its query in the same decision's batch nor its waiting query runs."""
        with running(tmp_path, partial(Scripted, (0,), 2)) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.transformer.before = gate
            policy: Any = run.policies[0]
            run.ask(ask("t", 1.0))
            assert gate.reached.wait(10)
            other, lost = ask("t", 2.0), ask("t", 3.0, 4.0, 5.0, 6.0)
            run.ask(other, lost)
            assert run.counts("waiting_queries", 5)
            policy.hopeless = lambda query: query.pixels.flat[0] == 3.0
            gate.open()
            with pytest.raises(Unavailable):
                lost.wait()
            other.wait()
            assert run.transformer.batches[1:] == [(0, [2.0])]
            assert run.counts("outcomes_total", 4, outcome="evicted")
            assert until(lambda: [seconds is None for seconds in policy.reported] == [False, True])

    def test_an_answer_after_the_deadline_counts_as_late(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.transformer.before = gate
            request = ask("t", 1.0, latency_ms=1000)
            run.ask(request)
            assert gate.reached.wait(10)
            assert until(lambda: time.monotonic() > request.deadline)
            gate.open()
            request.wait()
            assert run.counts("outcomes_total", 1, outcome="late")

    def test_a_request_that_was_already_answered_is_not_decoded(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            over, good = ask("t", 1.0, inputs={"image": column([b"not read"])}), ask("t", 2.0)
            over.fail(Unavailable("its time is over"))  # as the boundary does
            run.ask(over, good)
            good.wait()
            assert run.counts("refused_queries_total", 1, reason="deadline")
            assert run.metric("refused_queries_total") == 1

    def test_deadlines_of_queries_leave_time_for_the_answer(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            policy: Any = run.policies[0]

            def left(latency_ms: float) -> float:
                """Seconds by which the policy's deadline of a query is earlier than the request's."""
                request = ask("t", 1.0, latency_ms=latency_ms)
                reply = request.reply
                request.reply = lambda outputs: (time.sleep(0.2), reply(outputs))  # type: ignore[method-assign, func-returns-value]
                run.ask(request)
                request.wait()
                return float(request.deadline - policy.added[-1].deadline)

            assert left(20_000) == 0
            assert until(lambda: 0.1 < left(20_000) < 2)
            assert left(1000) == pytest.approx(0.1)  # a tenth at most

    def test_a_cancelled_query_is_not_run(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.transformer.before = gate
            run.ask(ask("t", 1.0))
            assert gate.reached.wait(10)
            gone, answered, stays = ask("t", 2.0), ask("t", 3.0), ask("t", 4.0)
            run.ask(gone, answered, stays)
            assert run.counts("waiting_queries", 3)
            gone.withdrawn = True
            answered.fail(Unavailable("its time is over"))  # as the boundary does
            time.sleep(0.1)  # it is not asked about before
            gate.open()
            with pytest.raises(Cancelled):
                gone.wait()
            stays.wait()
            assert run.transformer.batches[1:] == [(0, [4.0])]
            assert run.counts("outcomes_total", 1, outcome="cancelled")
            assert run.counts("outcomes_total", 1, outcome="evicted")
            # The latency of a batch that became smaller is not reported for the planned one.
            assert until(lambda: len(run.policies[0].reported) == 2 and run.policies[0].reported[1] is None)  # type: ignore[attr-defined]
            assert run.policies[0].reported[0] > 0  # type: ignore[attr-defined]


class TestTasks:
    def test_are_added_changed_and_removed_while_queries_wait(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            unknown = ask("t", 1.0)
            run.ask(unknown)
            with pytest.raises(InvalidArgument, match="the model has no tasks"):
                unknown.wait()
            run.tasks.add("t", 3)
            gate = Gate(first=1)
            run.transformer.before = gate
            first = ask("t", 1.0)
            run.ask(first)
            assert first.wait()["logits"].shape == (1, 3)
            running_, queued = ask("t", 1.0), ask("t", 2.0)
            run.ask(running_)
            assert gate.reached.wait(10)
            run.ask(queued)
            assert run.counts("waiting_queries", 1)
            run.tasks.add("t", 4, replace=True)
            run.libraries[0].refresh()
            changed = ask("t", 3.0)
            run.ask(changed)
            assert run.counts("waiting_queries", 2)
            remove_task(run.tasks.folder, "t")
            run.libraries[0].refresh()
            after = ask("t", 1.0)
            run.ask(after)
            with pytest.raises(InvalidArgument, match="unknown task 't'"):
                after.wait()
            gate.open()
            assert running_.wait()["logits"].shape == queued.wait()["logits"].shape == (1, 3)
            assert changed.wait()["logits"].shape == (1, 4)  # in one batch with the one before it
            assert run.transformer.batches[2] == (0, [2.0, 3.0])
            assert until(lambda: run.libraries[0].refresh() is None and run.metric("task_bytes") == 0)

    def test_are_evicted_to_keep_the_memory_budget(self, tmp_path: Path) -> None:
        with running(tmp_path) as probe:
            size = probe.tasks.add("t", 6).bytes
        with running(tmp_path / "small", budget=size) as run:
            for classes in range(2, 7):
                run.tasks.add(f"t{classes}", classes)
            requests = [ask(f"t{2 + number % 5}", float(number)) for number in range(40)]
            for request in requests:
                run.ask(request)
            for number, request in enumerate(requests):
                assert request.wait()["logits"].shape == (1, 2 + number % 5)
            run.libraries[0].refresh()
            assert run.metric("task_evictions_total") >= 4
            assert run.metric("task_bytes") <= run.metric("task_budget_bytes") == size


class TestFailures:
    def test_an_engine_error_fails_only_its_batch(self, tmp_path: Path) -> None:
        with running(tmp_path, partial(Scripted, (0,), 2)) as run:
            run.tasks.add("t", 2)

            def fail(number: int) -> None:
                if number == 0:
                    raise RuntimeError("no memory")

            run.transformer.before = fail
            first, second = ask("t", 1.0, 2.0, 3.0), ask("t", 4.0)
            run.ask(first)
            with pytest.raises(Internal, match="the engine failed: no memory"):
                first.wait()
            run.ask(second)
            assert second.wait()["logits"].shape == (1, 2)
            assert [values for _, values in run.transformer.batches] == [[1.0, 2.0], [4.0]]
            assert run.counts("outcomes_total", 3, outcome="failed")
            # The third row of the first request was removed from the queue too.
            assert until(lambda: [seconds is None for seconds in run.policies[0].reported] == [True, False])  # type: ignore[attr-defined]
            assert run.metric("service_restarts_total") == 0

    def test_a_policy_error_restarts_the_service(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            run.policies[0].failure = ZeroDivisionError("a plan")  # type: ignore[attr-defined]
            lost = ask("t", 1.0)
            run.ask(lost)
            with pytest.raises(TidalError, match="a plan"):
                lost.wait()
            assert run.counts("service_restarts_total", 1)

            def serves() -> bool:
                request: TextRequest = ask("t", 1.0)
                run.ask(request)
                try:
                    return request.wait()["logits"].shape == (1, 2)
                except Unavailable:  # it is still starting
                    return False

            assert until(serves)

    def test_accepted_requests_are_answered_before_shutdown(self, tmp_path: Path) -> None:
        with running(tmp_path, partial(Scripted, (0,), 3)) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.transformer.before = gate
            requests = [ask("t", 1.0, 2.0) for _ in range(8)]
            run.ask(*requests)
            closing = threading.Thread(target=run.keeper.close, args=(10,))
            closing.start()
            gate.open()
            closing.join(20)
            assert [request.wait()["logits"].shape for request in requests] == [(2, 2)] * 8
