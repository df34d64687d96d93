"""Ensembles through the real server, over HTTP and gRPC: answers, options, errors, and steps that change."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from demo import checking, reranking
from demo.metrics import WANTED, sample_of
from testing.requests import column
from testing.waiting import until
from tests.ensembles.conftest import CHECKS, IMAGE_TASKS, PASSAGES, Retrieval
from tests.otas.photos import encoded, photo
from tidal.repository.entries import ModelEntry
from tidal.server.change import load
from tidal.server.child import RunningServer
from tidal.server.stubs import live_stubs
from tidal_client import Client, InvalidArgument, RequestError, Unavailable

pytestmark = pytest.mark.server

TEXTS = ("good song", "bad weather today", "please book the hotel", "cancel it")
IMAGES = tuple(encoded(photo(40 + 9 * number, 50), "PNG") for number in range(3))
LONG: dict[str, Any] = {"latency_ms": 20_000}


class TestAnswers:
    def test_text_to_label(self, url: str) -> None:
        inputs = {"text_input": column(TEXTS)}
        with Client(url) as client:
            found = client.infer("text_to_label", inputs)
            assert found["label"].tolist() == client.infer("intents", inputs, outputs=["label"])["label"].tolist()
            assert client.classify("text_to_label", TEXTS[0]).label == found["label"][0, 0].decode()

    def test_image_to_label_by_the_task_of_the_request(self, url: str) -> None:
        inputs = {"image": column(IMAGES)}
        with Client(url) as client:
            for task in IMAGE_TASKS:
                found = client.infer("image_to_label", inputs, task=task, utility=0.3, **LONG)
                own = client.infer("digits", inputs, task=task, utility=0.3, **LONG)
                assert found["label"].tolist() == own["label"].tolist()
                assert all(label.startswith(task.encode()) for label in found["label"].ravel())

    def test_a_label_that_another_system_checks(self, url: str) -> None:
        with Client(url) as client:
            for task in CHECKS:
                for number, text in enumerate(TEXTS):
                    found = client.infer(
                        "text_to_checked_label", {"text_input": column([text])}, task=task, request_id=f"q{number}"
                    )
                    # With the same id the cascade's draws are the same.
                    cascade = client.infer("intents_cascade", {"text_input": column([text])}, request_id=f"q{number}")
                    for name in ("label", "level", "confidence"):
                        assert found[name].tolist() == cascade[name].tolist()
                    label = cascade["label"].item().decode()
                    check = client.classify("encoder", text, pair=label, task=task)
                    assert found["check"].item().decode() == check.label
                    np.testing.assert_allclose(found["check_probabilities"][0], check.probabilities, atol=1e-5)

    def test_rows_stay_in_their_order(self, url: str) -> None:
        with Client(url) as client:
            found = client.infer("text_to_checked_label", {"text_input": column(TEXTS)}, task=CHECKS[0], max_level=1)
            alone = [client.infer("intents_cascade", {"text_input": column([t])}, max_level=1) for t in TEXTS]
            assert found["label"].ravel().tolist() == [each["label"].item() for each in alone]
            assert set(found["level"].ravel().tolist()) == {1}  # the option reached the cascade
            checks = [
                client.classify("encoder", text, pair=label.decode(), task=CHECKS[0]).label.encode()
                for text, label in zip(TEXTS, found["label"].ravel(), strict=True)
            ]
            assert found["check"].ravel().tolist() == checks


class TestRetrieval:
    @pytest.mark.parametrize("count", [None, 1, 5, 64])
    def test_the_nearest_texts_and_their_scores(self, url: str, retrieval: Retrieval, count: int | None) -> None:
        vectors = np.stack([retrieval.embed(text) for text in PASSAGES])
        with Client(url) as client:
            for query in TEXTS:
                cosines = vectors @ retrieval.embed(query)
                expected = np.argsort(-cosines, kind="stable")[: count or 3]
                found = client.infer("retrieve_and_rerank", {"text_input": column([query])}, top_k=count)
                assert found["index"][:, 0].tolist() == expected.tolist()
                assert [text.decode() for text in found["text"][:, 0]] == [PASSAGES[row] for row in expected]
                np.testing.assert_allclose(found["similarity"][:, 0], cosines[expected], atol=1e-4)
                scores = [retrieval.score(query, PASSAGES[row]) for row in expected]
                np.testing.assert_allclose(found["score"][:, 0], scores, atol=1e-3)

    def test_the_demo_shows_the_best_score_first(self, url: str, retrieval: Retrieval) -> None:
        with Client(url) as client:
            found = reranking.ask(client, TEXTS[0], len(PASSAGES))
        scores = {text: retrieval.score(TEXTS[0], text) for text in PASSAGES}
        assert [each.text for each in found] == sorted(scores, key=scores.__getitem__, reverse=True)
        np.testing.assert_allclose([each.score for each in found], [scores[each.text] for each in found], atol=1e-3)

    @pytest.mark.parametrize(
        ("inputs", "options", "said"),
        [
            ({"text_input": column(["  "])}, {}, "text_input row 0 is empty"),
            ({"text_input": column([b"\xff"])}, {}, "text_input row 0 is not valid UTF-8"),
            ({"text_input": column(["good"])}, {"top_k": 65}, "'top_k' is 65; this model accepts 1 to 64 texts"),
            ({"text_input": column(["good"])}, {"top_k": 0}, "'top_k' is 0"),
            ({"text_input": column(["good"])}, {"prompt": "query"}, "unknown prompt 'query'"),
        ],
    )
    def test_what_a_step_refuses(self, url: str, inputs: Any, options: dict[str, Any], said: str) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument, match=re.escape(said)):
            client.infer("retrieve_and_rerank", inputs, **options)

    def test_one_query_per_request(self, url: str) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument, match=r"text_input"):
            client.infer("retrieve_and_rerank", {"text_input": column(["good", "bad"])})

    def test_vectors_of_another_model_are_refused(self, url: str) -> None:
        inputs = {"embedding": np.ones((1, 3), np.float32), "text_input": column(["good"])}
        with (
            Client(url) as client,
            pytest.raises(InvalidArgument, match=r"shape \[1, 3\]; expected finite .*\[1, 64\]"),
        ):
            client.infer("passages", inputs)

    def test_a_deadline_reaches_the_steps(self, url: str) -> None:
        with Client(url) as client, pytest.raises(Unavailable):
            client.infer("retrieve_and_rerank", {"text_input": column(["good"])}, latency_ms=0.01)


class TestErrors:
    @pytest.mark.parametrize(
        ("model", "inputs", "options", "said"),
        [
            ("text_to_label", {"text_input": column(["good", " "])}, {}, "text_input row 1 is empty"),
            ("text_to_label", {"text_input": column([b"\xff"])}, {}, "text_input row 0 is not valid UTF-8"),
            ("text_to_checked_label", {"text_input": column(["good"])}, {}, "task"),
            ("text_to_checked_label", {"text_input": column(["good"])}, {"task": "lora_1"}, "lora_0"),
            ("text_to_checked_label", {"text_input": column([""])}, {"task": CHECKS[0]}, "text_input row 0 is empty"),
            ("image_to_label", {"image": column([b"no image"])}, {"task": "moods"}, "image"),
            ("image_to_label", {"image": column(IMAGES)}, {"task": "moods", "utility": -1}, "option 'utility'"),
            ("image_to_label", {"image": column(IMAGES)}, {"task": "mods"}, "moods"),
        ],
    )
    def test_a_steps_refusal_keeps_its_code_and_sentence(
        self, url: str, model: str, inputs: Any, options: dict[str, Any], said: str
    ) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument, match=re.escape(said)):
            client.infer(model, inputs, **options)

    @pytest.mark.parametrize(
        ("model", "inputs"),
        [
            ("text_to_label", {"text_input": column(TEXTS)}),
            ("text_to_checked_label", {"text_input": column(TEXTS)}),
            ("image_to_label", {"image": column(IMAGES)}),
        ],
    )
    def test_a_deadline_reaches_the_steps(self, url: str, model: str, inputs: Any) -> None:
        task = {"image_to_label": "moods", "text_to_checked_label": CHECKS[0]}.get(model)
        with Client(url) as client, pytest.raises(Unavailable):
            client.infer(model, inputs, task=task, latency_ms=0.01)

    def test_a_bad_request_harms_no_other(self, url: str) -> None:
        def ask(number: int) -> str:
            text = " " if number % 3 == 0 else TEXTS[number % len(TEXTS)]
            try:
                return client.classify("text_to_label", text).label
            except InvalidArgument:
                return "refused"

        with Client(url) as client, ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(60)))
        assert [answer == "refused" for answer in answers] == [number % 3 == 0 for number in range(60)]


class TestDemo:
    def test_the_shown_check_is_that_of_the_ensemble(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checking, "TASK", CHECKS[0])
        with Client(url) as client:
            found = checking.ask(client, TEXTS[0])
            check = client.classify("encoder", TEXTS[0], pair=found.label, task=CHECKS[0])
        assert found.level in (1, 2)
        assert found.check == check.label
        assert found.probability == pytest.approx(check.top_probability, abs=1e-5)

    def test_metrics_that_it_shows_are_on_the_page(
        self, server: RunningServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of each model that is here: all but the writer."""
        here = {family: model for family, model in WANTED.items() if model != "writer"}
        monkeypatch.setattr("demo.metrics.WANTED", here)
        with Client(server.http) as client:
            client.classify("text_to_label", TEXTS[0])
            client.infer("text_to_checked_label", {"text_input": column(TEXTS)}, task=CHECKS[0])
            client.infer("image_to_label", {"image": column(IMAGES)}, task="moods", **LONG)
        lines = sample_of(f"http://{server.state.metrics}/metrics")
        assert {line.partition("{")[0] for line in lines} == set(here)
        assert all(float(line.split()[-1]) > 0 for line in lines)


class TestChanges:
    """These change the server: they come last."""

    def test_no_request_fails_while_a_step_is_published(self, server: RunningServer) -> None:
        repository = server.state.repository
        entry = ModelEntry(repository / "intents")
        over, answers, failures = threading.Event(), list[str](), list[str]()

        def ask() -> None:
            while not over.is_set():
                try:
                    answers.append(client.classify("text_to_label", TEXTS[len(answers) % len(TEXTS)]).label)
                except RequestError as error:
                    failures.append(f"{type(error).__name__}: {error}")

        with Client(server.grpc) as client, ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            try:
                assert until(lambda: len(answers) > 50)
                staging = entry.new_staging()
                shutil.copytree(entry.version_dir(1), staging, dirs_exist_ok=True)
                version = entry.publish(staging)
                reported = load(server.control, repository, "text_to_label")
                assert f"intents: versions 1, {version} serve now" in reported
                before = len(answers)
                assert until(lambda: len(answers) > before + 50)
            finally:
                over.set()
            for each in asking:
                each.result(timeout=60)
        assert failures == []

    def test_a_step_whose_process_is_killed_comes_back(self, server: RunningServer) -> None:
        def answers(model: str, **options: Any) -> Callable[[], bool]:
            def ask() -> bool:
                try:
                    client.infer(model, inputs[model], **options)
                except RequestError:
                    return False
                return True

            return ask

        inputs = {"image_to_label": {"image": column(IMAGES)}, "text_to_label": {"text_input": column(TEXTS)}}
        stubs = [stub for stub in live_stubs(server.state.server_pid) if stub.model == "digits"]
        with Client(server.http, timeout_s=5) as client:
            os.kill(stubs[0].pid, signal.SIGKILL)
            assert answers("text_to_label")()
            if not psutil.pid_exists(server.state.server_pid):
                pytest.skip("tritonserver aborted: the kill came while the stub held a lock that it shares with it")
            assert until(answers("image_to_label", task="moods", **LONG))
            assert answers("text_to_label")()
