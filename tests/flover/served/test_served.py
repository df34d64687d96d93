"""The `flover` backend on a real server, over HTTP and gRPC, compared with transformers' own generation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from testing.decoders import EOS, POSITIONS, byte_ids
from testing.processes import stop
from testing.waiting import until
from tests.flover.served.conftest import FAMILIES, MOST_OPEN, SLOTS, Served
from tidal_client import AsyncClient, Client, DeadlineExceeded, InvalidArgument, NotFound, Unavailable

pytestmark = pytest.mark.server


def prompts(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(EOS) for _ in range(rng.randint(1, 50))] for _ in range(count)]


class TestTokens:
    @pytest.mark.parametrize("model", FAMILIES)
    def test_equal_those_of_transformers_under_concurrent_requests(self, url: str, served: Served, model: str) -> None:
        """Random arrivals and lengths, whole answers and streams; three of ten are cancelled during the stream."""
        asked = [(prompt, random.Random(number)) for number, prompt in enumerate(prompts(16, 3))]
        limit_in_flight = asyncio.Semaphore(8)

        async def one(client: AsyncClient, prompt: list[int], rng: random.Random) -> bool:
            limit, gone = rng.randint(1, 30), rng.random() < 0.3
            expected = served.greedy(model, prompt, min(limit, POSITIONS - len(prompt)))
            await asyncio.sleep(rng.random() * 0.2)
            async with limit_in_flight:
                if not gone and rng.random() < 0.5:
                    whole = await client.generate(model, prompt, max_tokens=limit)
                    assert list(whole.tokens) == expected
                    return True
                found: list[int] = []
                async with contextlib.aclosing(client.generate_stream(model, prompt, max_tokens=limit)) as parts:
                    async for part in parts:
                        found += part.tokens
                        if gone and rng.random() < 0.3:
                            break
            assert found == expected[: len(found)]
            return not gone and found == expected

        async def all_of_them() -> list[bool]:
            async with AsyncClient(url) as client:
                return await asyncio.gather(*(one(client, *each) for each in asked))

        complete = asyncio.run(all_of_them())
        assert sum(complete) >= 8
        assert until(lambda: served.metric("taken_slots", model) == 0)

    def test_text_parts_and_counts(self, url: str, served: Served) -> None:
        with Client(url) as client:
            whole = client.generate("writer", "the naïve cat", max_tokens=40)
            # On a busy machine all tokens can be generated before the first one was sent.
            for _ in range(20):
                parts = list(client.generate_stream("writer", "the naïve cat", max_tokens=40))
                if len(parts) > 1:
                    break
        assert "".join(part.text for part in parts) == whole.text
        assert tuple(token for part in parts for token in part.tokens) == whole.tokens
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert len(parts) > 1
        for answer in (whole, parts[-1]):
            assert (answer.prompt_tokens, answer.generated_tokens) == (len("the naïve cat".encode()), len(whole.tokens))
            assert answer.finish_reason == ("eos" if whole.tokens[-1] == EOS else "length")
        stop = whole.text[3:5]
        start = whole.text.index(stop)
        with Client(url) as client:
            stopped = client.generate("writer", "the naïve cat", max_tokens=40, stop=["§§", stop])
        assert (stopped.text, stopped.finish_reason) == (whole.text[:start], "stop")

    def test_seeded_sampling_is_reproducible(self, url: str) -> None:
        with Client(url) as client:
            options: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
            first = client.generate("writer", [5, 6, 7], seed=3, max_tokens=12, **options)
            with ThreadPoolExecutor(4) as pool:
                others = [pool.submit(client.generate, "writer", [n], seed=n, **options) for n in range(4)]
                again = client.generate("writer", [5, 6, 7], seed=3, max_tokens=12, **options)
                assert all(other.result().tokens for other in others)
        assert again.tokens == first.tokens
        assert len(first.tokens) > 1


class TestPlainProtocols:
    def test_generate_returns_one_answer(self, served: Served) -> None:
        status, body = served.post("narrow", "generate", text_input="hello", temperature=0.0)
        answer = json.loads(body)
        assert status == 200
        expected = served.greedy("narrow", byte_ids("hello"), 5)
        assert np.atleast_1d(answer["token_ids"]).tolist() == expected
        assert (answer["prompt_tokens"], answer["generated_tokens"]) == (5, len(expected))

    def test_generate_stream_returns_events(self, served: Served) -> None:
        fields = {"text_input": "hello", "stream": True, "parameters": {"max_tokens": 30}}
        status, body = served.post("writer", "generate_stream", **fields)
        events = [json.loads(line.removeprefix("data:")) for line in body.splitlines() if line.startswith("data:")]
        assert status == 200
        tokens = [token for event in events for token in np.atleast_1d(event["token_ids"]).tolist()]
        assert tokens == served.greedy("writer", byte_ids("hello"), 30)
        assert [event for event in events if "finish_reason" in event] == events[-1:]

    @pytest.mark.parametrize("stream", [False, None, True])
    def test_a_grpc_stream_ends_with_a_final_response(self, served: Served, stream: bool | None) -> None:
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client = grpc.InferenceServerClient(served.server.grpc)
        ids = grpc.InferInput("input_ids", [3], "INT64")
        ids.set_data_from_numpy(np.array([1, 2, 3]))
        inputs = [ids]
        if stream is not None:
            inputs.append(grpc.InferInput("stream", [1], "BOOL"))
            inputs[-1].set_data_from_numpy(np.array([stream]))
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer("writer", inputs, outputs=[grpc.InferRequestedOutput("token_ids")],
                                  parameters={"max_tokens": 60}, enable_empty_final_response=True)  # fmt: skip
        found, count, final = [], 0, False
        while not final:
            result, error = responses.get(timeout=20)
            assert error is None
            found += result.as_numpy("token_ids").tolist()
            assert result.as_numpy("text_output") is None
            final = result.get_response().parameters["triton_final_response"].bool_param
            count += 1
        client.stop_stream()
        client.close()
        assert found == served.greedy("writer", [1, 2, 3], 60)
        assert (count == 1) is not stream


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ("", {}, "text_input row 0 is empty; accepted: a text of at least one word"),
    ([1] * POSITIONS, {}, f"input_ids has shape [{POSITIONS}]; accepted is [tokens], 1 to {POSITIONS - 1}"),
    ("x" * 140, {}, f"has 140 tokens; this model reads at most {POSITIONS - 1}"),
    ([1, 300], {}, "input_ids has the id 300; accepted are 0 to 256"),
    ("hi", {"task": "x"}, "unknown task 'x'"),
    ("hi", {"max_tokens": 0}, "request option 'max_tokens': input should be greater than or equal to 1"),
    ("hi", {"temperature": -1}, "request option 'temperature'"),
    ("hi", {"top_p": 0}, "request option 'top_p': input should be greater than 0"),
    ("hi", {"top_p": 1.5}, "request option 'top_p': input should be less than or equal to 1"),
    ("hi", {"repetition_penalty": 0}, "request option 'repetition_penalty'"),
    ("hi", {"stop": ["a"] * 9}, "request option 'stop': expected 1 to 8 texts of at most 256 characters"),
    ("hi", {"stop": ""}, "request option 'stop': expected texts of at least 1 character"),
]


class TestRefusals:
    def test_an_invalid_request_is_refused_alone(self, url: str, served: Served) -> None:
        with Client(url) as client, ThreadPoolExecutor(2) as pool:
            for prompt, options, message in BAD:
                good = pool.submit(client.generate, "writer", [7, 8], max_tokens=8)
                with pytest.raises(InvalidArgument) as caught:
                    client.generate("writer", prompt, **options)
                assert message in str(caught.value)
                assert list(good.result().tokens) == served.greedy("writer", [7, 8], 8)
            with pytest.raises(NotFound, match="nobody"):
                client.generate("nobody", "hi")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"text_input": "a", "input_ids": [1]}, "both text_input and input_ids were sent"),
            ({"text_input": "a", "temperature": "hot"}, "expected a number, got the text 'hot'"),
            ({"text_input": "a", "max_tokens": 1.5}, "expected a whole number, got 1.5"),
            ({"text_input": "a", "max_token": 3}, "did you mean 'max_tokens'?"),
            ({"stream": False}, "neither text_input nor input_ids"),
            ({"text_input": ["a"] * 7}, "text_input has shape [7]; accepted is [prompts], 1 to 6"),
            ({"text_input": ["a", ""]}, "text_input row 1 is empty"),
            (
                {"text_input": ["a", "b"], "num_beams": 4},
                "text_input has shape [2]; accepted is [prompts], 1 to 1 of 4",
            ),
            ({"text_input": "a", "num_beams": 7}, "'num_beams': 7 beams need 7 slots; this model has 6"),
            ({"text_input": "a", "num_beams": 2, "early_stopping": "soon"}, "expected true, false or 'never'"),
        ],
    )
    def test_requests_without_a_client_library(self, served: Served, fields: dict[str, Any], message: str) -> None:
        for how in ("generate", "generate_stream"):
            status, body = served.post("writer", how, **fields)
            assert status == 400 or how == "generate_stream"
            assert message in json.loads(body.removeprefix("data:"))["error"]

    def test_requests_beyond_the_queue_size_are_refused(self, url: str, served: Served) -> None:
        errors: list[BaseException | None] = []
        with Client(url) as client, ThreadPoolExecutor(32) as pool:
            for _ in range(50):  # until enough of them wait at the same time
                asked = [pool.submit(client.generate, "narrow", [n], max_tokens=100) for n in range(32)]
                errors += [each.exception() for each in asked]
                if any(errors):
                    break
        refused = [error for error in errors if error is not None]
        assert refused
        assert all(isinstance(error, Unavailable) and "queue is full" in str(error) for error in refused)
        assert sum(error is None for error in errors) >= MOST_OPEN

    def test_deadlines(self, url: str, served: Served) -> None:
        texts = ["abcdefghij" * 2] * SLOTS["writer"]
        with Client(url) as client:
            with pytest.raises(Unavailable, match="deadline of 2 ms"):
                client.generate("writer", texts, max_tokens=100, temperature=50.0, latency_ms=2)
            assert client.generate("writer", [3], max_tokens=2, latency_ms=10_000).tokens
        assert until(lambda: served.metric("taken_slots", "writer") == 0)


class TestCancellations:
    def test_a_cancelled_stream_frees_its_slot(self, url: str, served: Served) -> None:
        before = served.metric("generations_total", "narrow", outcome="cancelled")
        with Client(url) as client:

            def leave() -> bool:
                for _ in range(2 * SLOTS["narrow"]):
                    parts = client.generate_stream("narrow", [9], max_tokens=POSITIONS - 1)
                    next(parts)
                    parts.close()
                return served.metric("generations_total", "narrow", outcome="cancelled") > before

            assert until(leave)  # a text may end before its cancellation
            assert list(client.generate("narrow", [4], max_tokens=3).tokens) == served.greedy("narrow", [4], 3)
        assert until(lambda: served.metric("taken_slots", "narrow") == 0)

    def test_a_closed_connection_cancels_its_request(self, served: Served) -> None:
        before = served.metric("generations_total", "narrow", outcome="cancelled")
        host, port = served.server.http.split(":")
        body = json.dumps({"input_ids": [9], "stream": True, "max_tokens": POSITIONS - 1})
        head = f"POST /v2/models/narrow/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"

        def leave() -> bool:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall((head + body).encode())
                assert b"200 OK" in connection.recv(64)
            return served.metric("generations_total", "narrow", outcome="cancelled") > before

        assert until(leave)
        assert until(lambda: served.metric("taken_slots", "narrow") == 0)

    def test_a_client_times_out_by_itself(self, url: str, served: Served) -> None:
        (stub,) = served.server.stub_pids("writer")
        stop(stub)  # so that no answer can arrive in time
        try:
            with Client(url, timeout_s=0.3) as client, pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
                client.generate("writer", [4], max_tokens=100)
        finally:
            os.kill(stub, signal.SIGCONT)
        with Client(url) as client:
            assert list(client.generate("writer", [4], max_tokens=3).tokens) == served.greedy("writer", [4], 3)


def test_texts_with_drafts_equal_those_of_transformers(url: str, served: Served) -> None:
    """Prompts that repeat themselves, on every decoder; drafted tokens are counted."""
    with Client(url) as client:
        for model in FAMILIES:
            for prompt in ([5, 6, 7] * 6, [9] * 12, [*range(20, 40)] * 2):
                assert list(client.generate(model, prompt, max_tokens=20).tokens) == served.greedy(model, prompt, 20)
    assert until(lambda: sum(served.metric("draft_tokens_total", model) for model in FAMILIES) > 0)


def test_metrics(served: Served) -> None:
    with Client(served.url("grpc")) as client:
        client.generate("writer", [1, 2, 3], max_tokens=9)
    for family in (
        "time_to_first_token_seconds_count", "time_per_output_token_seconds_count", "fused_generations_count",
        "step_seconds_count", "step_slots_total", "generated_tokens_total", "prompt_tokens_total",
        "prefill_seconds_total", "queue_seconds_count", "request_seconds_count",
    ):  # fmt: skip
        assert until(lambda family=family: served.metric(family, "writer") > 0), family
    assert served.metric("step_slots_total", "writer") >= served.metric("fused_generations_count", "writer")
