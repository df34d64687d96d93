"""The `arlo` backend on a real server, over HTTP and gRPC, compared with the unmodified Hugging Face model."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from testing.metrics import published
from testing.processes import stop
from testing.servers import RunningServer
from testing.waiting import until
from tests.arlo.conftest import MAX_LENGTH, Built
from tests.arlo.support import WORDS, make_texts, text_rows
from tidal_client import AsyncClient, Client, InvalidArgument, RequestError, Unavailable

pytestmark = pytest.mark.server

#: Requests of 64 rows that fill most of the queue, whose limit is 1,024 rows.
AHEAD = 14


def histogram(server: RunningServer, family: str, model: str) -> tuple[float, float]:
    """Return count and sum of one of a model's published histograms."""
    page = server.metrics_text()
    return published(page, f"{family}_count", model=model), published(page, f"{family}_sum", model=model)


def answered(server: RunningServer, model: str) -> float:
    """Return the published number of requests that a model has answered."""
    return published(server.metrics_text(), "tidal_arlo_requests_total", model=model)


def publish(server: RunningServer, model: str) -> None:
    """Send a request that is refused, and wait until the metrics count it."""
    before = answered(server, model)
    with Client(f"grpc://{server.grpc}") as client, pytest.raises(InvalidArgument):
        client.classify(model, "good", latency_ms=-1.0)
    assert until(lambda: answered(server, model) > before)


def executed(server: RunningServer, model: str) -> float:
    """Return the number of queries that a model has run.

    A model publishes its series in rounds. Each refused request is counted in a later round than the one before it, so
    a whole round has been published since the call.
    """
    for _ in range(3):
        publish(server, model)
    return histogram(server, "tidal_arlo_batch_size_queries", model)[1]


@pytest.fixture(scope="module")
def reference(built: Built) -> Callable[..., np.ndarray[Any, Any]]:
    """Logits of the unmodified model for one text, or pair, alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(built.source).eval()
    tokenizer = AutoTokenizer.from_pretrained(built.source)

    def logits(text: str, pair: str | None = None) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return np.asarray(model(**tokenizer(text, pair, return_tensors="pt")).logits[0].numpy())

    return logits


class TestAnswers:
    def test_text(self, url: str, reference: Callable[..., np.ndarray[Any, Any]]) -> None:
        with Client(url) as client:
            for text in ["good", *make_texts(12, seed=1)]:
                answer, expected = client.classify("tiny", text), reference(text)
                assert answer.logits is not None
                assert answer.probabilities is not None
                np.testing.assert_allclose(answer.logits, expected, atol=1e-3)
                assert answer.label == ("negative", "neutral", "positive")[expected.argmax()]
                np.testing.assert_allclose(answer.probabilities, np.exp(expected) / np.exp(expected).sum(), atol=1e-3)
                tokens = len(text.split()) + 2
                assert answer.max_length == (16 if tokens <= 16 else 32 if tokens <= 32 else 64)

    def test_pairs(self, url: str, reference: Callable[..., np.ndarray[Any, Any]]) -> None:
        with Client(url) as client:
            answers = client.classify_many("tiny", ["good song", "bad"], pairs=["bad weather today", "flight"])
        for answer, pair in zip(answers, [("good song", "bad weather today"), ("bad", "flight")], strict=True):
            np.testing.assert_allclose(answer.logits, reference(*pair), atol=1e-3)  # type: ignore[arg-type]

    def test_ids_with_padding_equal_text(self, url: str, built: Built) -> None:
        from transformers import AutoTokenizer

        texts = ["good", "please book a flight to the city"]
        ids = AutoTokenizer.from_pretrained(built.source)(texts, padding=True, return_tensors="np")
        inputs = {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}
        with Client(url) as client:
            by_ids = client.infer("tiny", inputs)
            by_text = client.classify_many("tiny", texts)
        np.testing.assert_allclose(by_ids["logits"], [answer.logits for answer in by_text], atol=1e-5)

    def test_an_answer_does_not_depend_on_other_queries(self, url: str) -> None:
        texts = make_texts(120, seed=2)
        with Client(url) as client, ThreadPoolExecutor(32) as pool:
            together = list(pool.map(lambda text: client.classify("tiny", text).logits, texts))
            rows = [answer.logits for answer in client.classify_many("tiny", texts)]
            alone = [client.classify("tiny", text).logits for text in texts]
        np.testing.assert_allclose(together, alone, atol=1e-4)
        np.testing.assert_allclose(rows, alone, atol=1e-4)

    def test_attention_received_has_one_value_per_token_and_the_right_sum(self, url: str) -> None:
        with Client(url) as client:
            answer = client.infer("tiny", {"text_input": np.array([[b"good song"], [b"bad"]], object)})
        received = answer["attention_received"]
        assert received.shape == (2, 4)
        # Every token gives 1 in every head of every layer (2 layers, heads as the tiny model has them).
        given = received.sum(1)
        assert given[0] / 4 == pytest.approx(given[1] / 3, rel=1e-4)
        assert received[1, 3] == 0

    def test_only_requested_outputs_are_returned(self, url: str) -> None:
        with Client(url) as client:
            inputs = {"text_input": np.array([[b"good"]], object)}
            assert set(client.infer("tiny", inputs, outputs=["label"])) == {"label"}
            assert set(client.infer("tiny", inputs)) == {
                "logits",
                "probabilities",
                "label",
                "max_length",
                "input_tokens",
                "attention_received",
            }

    def test_a_config_of_one_line_serves(self, url: str) -> None:
        with Client(url) as client:
            assert client.classify("line", "good").label == client.classify("tiny", "good").label

    def test_truncation_when_the_config_says_so(self, url: str, reference: Callable[..., Any]) -> None:
        words = ("good bad song actor " * 40).split()
        with Client(url) as client:
            answer = client.classify("short", " ".join(words))
        assert answer.max_length == MAX_LENGTH
        np.testing.assert_allclose(answer.logits, reference(" ".join(words[: MAX_LENGTH - 2])), atol=1e-3)  # type: ignore[arg-type]


def id_rows(*rows: list[int]) -> dict[str, Any]:
    return {"input_ids": np.array(rows, np.int64)}


BAD_INPUTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"text": np.array([[b"good"]], object)}, {}, "text"),
    ({}, {}, ""),
    (text_rows(b""), {}, "text_input row 0 is empty"),
    (text_rows(b"good", b" \t "), {}, "text_input row 1 is empty"),
    (text_rows(b"ok \xff\xfe"), {}, "text_input row 0 is not valid UTF-8 at byte 3"),
    (text_rows(b"good " * MAX_LENGTH), {}, f"{MAX_LENGTH + 2} tokens; this model reads at most {MAX_LENGTH}"),
    (text_rows(b"x" * 100_000), {}, "100000 bytes; this model reads at most"),
    ({"text_input": np.array([[b"a", b"b"]], object)}, {}, "text_input"),
    ({"text_input": np.array([[1.5]], np.float32)}, {}, "text_input"),
    ({"text_pair": np.array([[b"a"]], object)}, {}, "text_pair was sent without text_input"),
    ({**text_rows(b"a"), **id_rows([1])}, {}, "both text_input and input_ids"),
    (id_rows([1, 10**6]), {}, "input_ids row 0 has the id 1000000 at position 1"),
    (id_rows([1, -5]), {}, "input_ids row 0 has the id -5"),
    (id_rows([1] * (MAX_LENGTH + 1)), {}, f"{MAX_LENGTH + 1} tokens; this model reads at most {MAX_LENGTH}"),
    ({"input_ids": np.zeros((1, 0), np.int64)}, {}, "input_ids"),
    ({"input_ids": np.array([[1, 2]], np.int32)}, {}, "input_ids"),
    ({"input_ids": np.array([[np.nan, 2.0]], np.float32)}, {}, "input_ids"),
    ({**id_rows([1, 2]), "attention_mask": np.array([[0, 0]], np.int64)}, {}, "attention_mask row 0 is all 0"),
    ({**id_rows([1, 2]), "attention_mask": np.array([[1, 7]], np.int64)}, {}, "values other than 0 and 1"),
    ({**id_rows([1, 2]), "attention_mask": np.array([[1]], np.int64)}, {}, "attention_mask"),
    (text_rows(*[b"good"] * 65), {}, "64"),
    (text_rows(b"good"), {"latency_ms": -1.0}, "'latency_ms'"),
    (text_rows(b"good"), {"latency_ms": float("nan")}, "latency_ms"),
    (text_rows(b"good"), {"max_tokens": 0}, "'max_tokens'"),
]


class TestBadInput:
    @pytest.mark.parametrize(("inputs", "options", "message"), BAD_INPUTS)
    def test_is_refused_and_does_not_affect_others(
        self, url: str, inputs: dict[str, Any], options: dict[str, Any], message: str
    ) -> None:
        with Client(url) as client, ThreadPoolExecutor(9) as pool:
            good = [pool.submit(client.classify, "tiny", text) for text in make_texts(8, seed=3)]
            with pytest.raises(InvalidArgument, match=None) as caught:
                client.infer("tiny", inputs, **options)
            assert message in str(caught.value)
            assert all(future.result().label for future in good)

    def test_a_similar_option_is_suggested(self, server: RunningServer) -> None:
        import tritonclient.grpc as grpc

        client = grpc.InferenceServerClient(server.grpc)
        tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"good"]], object))
        with pytest.raises(grpc.InferenceServerException, match="did you mean 'latency_ms'") as caught:
            client.infer("tiny", [tensor], parameters={"latency": 5}, client_timeout=30)
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        client.close()

    def test_an_unknown_output_is_named(self, url: str) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument, match="nonsense"):
            client.infer("tiny", text_rows(b"good"), outputs=["nonsense"])


class TestLimits:
    def test_a_deadline_that_cannot_be_met_is_refused_and_the_query_is_not_run(
        self, url: str, server: RunningServer
    ) -> None:
        with Client(url) as client:
            before = executed(server, "tiny")
            for _ in range(5):
                with pytest.raises(Unavailable, match=r"deadline of 0\.001 ms"):
                    client.classify("tiny", "good", latency_ms=0.001)
            assert client.classify("tiny", "good", latency_ms=20_000).label
        assert executed(server, "tiny") == before + 1

    def test_queries_beyond_the_queue_size_are_refused(self, url: str) -> None:
        def ask(client: Client, texts: list[str]) -> str:
            try:
                return "answered" if len(client.classify_many("narrow", texts)) == len(texts) else "incomplete"
            except Unavailable as error:
                assert "max_queue_size is 8" in str(error)
                return "refused"

        # Each request fills the queue alone, so that of two at a time one is refused whatever the machine's speed.
        requests = [make_texts(8, seed=seed, longest=60) for seed in range(128)]
        with Client(url) as client, ThreadPoolExecutor(32) as pool:
            outcomes = list(pool.map(lambda texts: ask(client, texts), requests))
            assert set(outcomes) == {"answered", "refused"}
            assert len(client.classify_many("narrow", ["good"] * 8)) == 8

    def test_a_request_that_exceeds_the_queue_limit_is_refused(self, url: str) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument, match="9 rows; accepted are up to max_queue_size"):
            client.classify_many("narrow", ["good"] * 9)

    def test_cancelled_queries_are_not_run(self, server: RunningServer) -> None:
        long = " ".join(WORDS * 3)
        (stub,) = server.stub_pids("tiny")

        def pending(count: int) -> bool:
            return published(server.metrics_text(), "nv_inference_pending_request_count", model="tiny") >= count

        async def scenario() -> None:
            async with AsyncClient(f"grpc://{server.grpc}") as client:
                stop(stub)  # nothing runs until all are cancelled
                try:
                    ahead = [asyncio.create_task(client.classify_many("tiny", [long] * 64)) for _ in range(AHEAD)]
                    assert await asyncio.to_thread(until, lambda: pending(AHEAD - 1))  # the stub may hold the first
                    waiting = [asyncio.create_task(client.classify("tiny", long)) for _ in range(100)]
                    assert await asyncio.to_thread(until, lambda: pending(AHEAD - 1 + 100))
                    for task in waiting:
                        task.cancel()
                    await asyncio.gather(*waiting, return_exceptions=True)
                    await asyncio.sleep(0.3)  # the server notices later than the client
                finally:
                    os.kill(stub, signal.SIGCONT)
                assert all(len(rows) == 64 for rows in await asyncio.gather(*ahead))

        def executed_although_cancelled() -> float:
            before = executed(server, "tiny")
            asyncio.run(scenario())
            return executed(server, "tiny") - before - AHEAD * 64

        # On a busy machine the server may notice after the queries ahead are finished.
        assert any(executed_although_cancelled() < 90 for _ in range(5))

    def test_concurrent_queries_are_batched(self, url: str, server: RunningServer) -> None:
        queries = executed(server, "tiny")  # also publishes what earlier tests ran
        batches, _ = histogram(server, "tidal_arlo_batch_size_queries", "tiny")
        with Client(url) as client:
            client.classify_many("tiny", ["good"] * 64)
        assert executed(server, "tiny") == queries + 64
        assert histogram(server, "tidal_arlo_batch_size_queries", "tiny")[0] - batches < 64

    def test_random_bytes_get_an_answer_or_invalid_argument(self, url: str) -> None:
        rng = random.Random(5)
        with Client(url) as client:
            for _ in range(60):
                try:
                    client.infer("tiny", text_rows(rng.randbytes(rng.randint(0, 60))))
                except RequestError as error:
                    assert isinstance(error, InvalidArgument), error
