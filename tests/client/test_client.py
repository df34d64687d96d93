from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tidal_client
from tests.client.conftest import ProbeServer
from tidal_client import AsyncClient, Client, InvalidArgument

pytestmark = pytest.mark.server


def test_one_text_gives_a_typed_result(call: Callable[..., Any]) -> None:
    result = call("classify", "probe", "a text that is rather long")
    assert result.label == "long"
    assert result.max_length == 32
    assert result.logits.dtype == np.float32
    assert result.logits.tolist() == [-16.0, 16.0]
    assert result.top_probability == pytest.approx(1.0)
    assert result.other["echo"].tolist() == [b"a text that is rather long|"]


def test_only_requested_outputs_are_returned(call: Callable[..., Any]) -> None:
    result = call("classify", "probe", "hi", outputs=["label"])
    assert (result.label, result.logits, result.probabilities, result.max_length) == ("short", None, None, None)
    assert result.top_probability is None
    assert not result.other


@pytest.mark.parametrize("text", ["", "grüße 你好 🌊", "zero\0byte", "line\nbreak", "e\u0301"])
def test_texts_arrive_byte_for_byte(call: Callable[..., Any], text: str) -> None:
    result = call("classify", "probe", text, pair=text)
    assert result.other["echo"].tolist() == [f"{text}|{text}".encode()]


def test_options_and_request_id_arrive(call: Callable[..., Any]) -> None:
    options = {
        "task": "intent", "latency_ms": 250.5, "utility": np.float32(2), "accuracy": np.float64(0.5),
        "max_level": np.int32(2), "max_tokens": np.int64(7), "temperature": 0, "top_k": 5, "seed": 2**40, "stop": "§",
        "top_p": 1, "repetition_penalty": np.float32(0.5),
    }  # fmt: skip
    result = call("classify", "probe", "hi", request_id="run-7", **options)
    asked = json.loads(result.other["asked"].item())
    assert asked["id"] == "run-7"
    parameters = {k: v for k, v in asked["parameters"].items() if k != "binary_data_output"}
    assert parameters == {
        "task": "intent", "latency_ms": 250.5, "utility": 2.0, "accuracy": 0.5, "max_level": 2, "max_tokens": 7,
        "temperature": 0.0, "top_k": 5, "seed": 2**40, "stop": "§", "top_p": 1.0, "repetition_penalty": 0.5,
    }  # fmt: skip


def test_an_option_that_is_none_is_not_sent(call: Callable[..., Any]) -> None:
    result = call("classify", "probe", "hi", latency_ms=None, task=None)
    assert json.loads(result.other["asked"].item())["parameters"] in ({}, {"binary_data_output": True})


@pytest.mark.parametrize(("count", "rows"), [(1, [1]), (64, [64]), (65, [64, 1]), (150, [64, 64, 22])])
def test_many_texts_are_split_and_keep_their_order(call: Callable[..., Any], count: int, rows: list[int]) -> None:
    texts = [f"{'x' * (i % 40)}{i}" for i in range(count)]
    pairs = [f"pair {i}" for i in range(count)]
    results = call("classify_many", "probe", texts, pairs=pairs)
    assert [r.other["echo"].item().decode() for r in results] == [f"{a}|{b}" for a, b in zip(texts, pairs, strict=True)]
    assert sorted(r.other["rows"].item() for r in results) == sorted(n for n in rows for _ in range(n))


def test_without_texts_nothing_is_sent(call: Callable[..., Any]) -> None:
    assert call("classify_many", "no such model", []) == []


def test_arrays_in_arrays_out(call: Callable[..., Any]) -> None:
    texts = np.array([["hello"], ["wörld"]])
    outputs = call("infer", "probe", {"text_input": texts}, outputs=["echo", "logits"])
    assert set(outputs) == {"echo", "logits"}
    assert outputs["echo"].tolist() == [[b"hello|"], ["wörld|".encode()]]
    assert outputs["logits"].shape == (2, 2)


def test_ready_and_metadata(call: Callable[..., Any]) -> None:
    assert call("ready")
    assert call("ready", "probe")
    assert not call("ready", "nope")
    metadata = call("metadata", "probe")
    assert metadata.versions == ("1",)
    assert metadata.inputs[0] == tidal_client.TensorSpec("text_input", "BYTES", (-1, 1))
    assert [t.name for t in metadata.outputs][:2] == ["logits", "probabilities"]
    with pytest.raises((tidal_client.NotFound, InvalidArgument), match="nope"):
        call("metadata", "nope")


@pytest.mark.parametrize(
    ("code", "message", "http", "grpc"),
    [
        ("INVALID_ARG", "too long", "InvalidArgument", "InvalidArgument"),
        ("NOT_FOUND", "no such task", "NotFound", "NotFound"),
        ("UNAVAILABLE", "the queue is full", "Unavailable", "Unavailable"),
        ("UNSUPPORTED", "not here", "Unsupported", "Unsupported"),
        ("INTERNAL", "oh dear", "ServerError", "ServerError"),
        ("CANCELLED", "the request was cancelled", "Cancelled", "Cancelled"),
        ("CANCELLED", "the client cancelled the request while it waited", "Cancelled", "Cancelled"),
        ("INVALID_ARG", "the label 'cancelled' is unknown", "InvalidArgument", "InvalidArgument"),
        # HTTP has one status for these and INVALID_ARG.
        ("UNKNOWN", "who knows", "InvalidArgument", "ServerError"),
        ("ALREADY_EXISTS", "again", "InvalidArgument", "ServerError"),
    ],
)
def test_each_error_code_has_its_exception(
    call: Callable[..., Any], url: str, code: str, message: str, http: str, grpc: str
) -> None:
    with pytest.raises(tidal_client.RequestError) as caught:
        call("classify", "probe", f"error {code} {message}")
    assert type(caught.value).__name__ == (http if url.startswith("http") else grpc)
    assert str(caught.value) == message


def test_tritons_errors_are_mapped(call: Callable[..., Any]) -> None:
    with pytest.raises(tidal_client.NotFound, match="nope"):
        call("classify", "nope", "hi")
    with pytest.raises(InvalidArgument, match="text_input"):
        call("infer", "probe", {"text_input": np.zeros((1, 1), np.float32)})
    with pytest.raises(InvalidArgument, match="bogus"):
        call("classify", "probe", "hi", outputs=["bogus"])
    with pytest.raises(InvalidArgument, match=r"batch.size"):
        call("infer", "probe", {"text_input": np.array([["x"]] * 65)})
    with pytest.raises(tidal_client.ServerError, match="boom"):
        call("classify", "probe", "raise")


def test_invalid_arguments_are_refused_by_name(call: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"texts\[1\]: not valid Unicode"):
        call("classify_many", "probe", ["fine", "\ud800"])
    with pytest.raises(InvalidArgument, match=r"texts\[0\]: expected a text, got int"):
        call("classify", "probe", 3)
    with pytest.raises(InvalidArgument, match="texts: expected a list"):
        call("classify_many", "probe", "one text")
    with pytest.raises(InvalidArgument, match=r"pairs: expected one per text \(2\), got 1"):
        call("classify_many", "probe", ["a", "b"], pairs=["c"])
    with pytest.raises(InvalidArgument, match="outputs: expected a list"):
        call("classify", "probe", "hi", outputs="label")
    with pytest.raises(InvalidArgument, match="model"):
        call("classify", "", "hi")
    with pytest.raises(InvalidArgument, match="'x': Triton has no datatype for numpy's complex128"):
        call("infer", "probe", {"x": np.zeros(1, np.complex128)})
    with pytest.raises(InvalidArgument, match="'latency_ms': expected a number, got 'soon'"):
        call("classify", "probe", "hi", latency_ms="soon")
    with pytest.raises(InvalidArgument, match="'top_k': expected a whole number, got True"):
        call("classify", "probe", "hi", top_k=True)
    with pytest.raises(TypeError, match="latncy_ms"):
        call("classify", "probe", "hi", latncy_ms=3)


def test_a_url_with_another_scheme_or_none_says_what_to_do() -> None:
    with pytest.raises(InvalidArgument, match="did you mean http://localhost:8001 or grpc://localhost:8001"):
        Client("localhost:8001")
    for url in ("https://h:1", "grpcs://h:1"):
        with pytest.raises(InvalidArgument, match="the client does not support TLS"):
            Client(url)


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:8001", "https://h:1", "grpc://h", "http://:1", "http://h:x", "http://h:99999"),
        *("grpc://h:1/path", "http://h:1?query", "http://h:1#fragment", "http://user@h:1", "grpc://user:secret@h:1"),
    ],
)
def test_a_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="expected http://HOST:PORT or grpc://HOST:PORT"):
        Client(url)
    with pytest.raises(InvalidArgument, match="expected http://HOST:PORT or grpc://HOST:PORT"):
        AsyncClient(url)


def test_threads_share_a_client(url: str) -> None:
    with Client(url) as client, ThreadPoolExecutor(32) as pool:
        texts = [f"text {i} {'x' * (i % 50)}" for i in range(200)]
        results = list(pool.map(lambda text: client.classify("probe", text), texts))
    assert [r.other["echo"].item().decode() for r in results] == [f"{text}|" for text in texts]


def test_ended_threads_leave_no_open_files(url: str) -> None:
    psutil = pytest.importorskip("psutil", reason="psutil is not installed: pip install psutil")
    with Client(url) as client:

        def round_of_threads() -> int:
            threads = [threading.Thread(target=client.classify, args=("probe", "hi")) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return int(psutil.Process().num_fds())

        first = round_of_threads()
        # Up to 20 connections at a time are kept open; 100 ended threads must not add to that.
        assert max(round_of_threads() for _ in range(5)) <= first + 20


def test_many_requests_in_flight_from_one_loop(url: str) -> None:
    async def run() -> list[str]:
        async with AsyncClient(url) as client:
            texts = [f"text {i}" for i in range(200)]
            results = await asyncio.gather(*(client.classify("probe", text) for text in texts))
            return [r.other["echo"].item().decode() for r in results]

    assert asyncio.run(run()) == [f"text {i}|" for i in range(200)]


def test_a_closed_client_raises(url: str, server: ProbeServer) -> None:
    client = Client(url)
    client.classify("probe", "hi")
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.classify("probe", "hi")

    async def run() -> None:
        unused, used = AsyncClient(url), AsyncClient(url)
        await used.ready()
        for each in (unused, used):
            await each.close()
            with pytest.raises(RuntimeError, match="closed"):
                await each.classify("probe", "hi")

    asyncio.run(run())
