"""The `engine` backend on a real server, over HTTP and gRPC, compared with the unmodified source model."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.engine_model.conftest import CORES
from tidal.engine_model.claims import CLAIMS_VARIABLE
from tidal.options import CODED_ERRORS
from tidal.repository.config import read_config, with_instances
from tidal_client import Client, InvalidArgument, Unavailable

pytestmark = pytest.mark.server

TEXTS = ("good", "book a flight to the city, please", "not a very good film")
Inputs = dict[str, np.ndarray[Any, Any]]


def request(rows: int = 1, length: int = 16, token: int = 7) -> Inputs:
    ids = np.full((rows, length), token, np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


@pytest.fixture(scope="module")
def tokens(source: Path) -> Callable[..., Inputs]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)

    def padded(texts: tuple[str, ...], length: int) -> Inputs:
        return dict(tokenizer(list(texts), padding="max_length", max_length=length, return_tensors="np"))

    return padded


@pytest.fixture(scope="module")
def reference(source: Path) -> Callable[[str], dict[str, np.ndarray[Any, Any]]]:
    """Outputs of the unmodified model for one text."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(source)

    def answer(text: str) -> dict[str, np.ndarray[Any, Any]]:
        with torch.inference_mode():
            out = model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
        received = torch.stack(out.attentions).sum(dim=(0, 1, 2, 3))
        return {"logits": out.logits[0].numpy(), "attention_received": received.numpy()}

    return answer


@pytest.mark.parametrize("length", [16, 32])
def test_outputs_equal_those_of_the_source_model(
    url: str, tokens: Callable[..., Inputs], reference: Callable[..., Inputs], length: int
) -> None:
    with Client(url) as client:
        together = client.infer(f"tiny_len{length}", tokens(TEXTS, length))
        alone = [client.infer(f"tiny_len{length}", tokens((text,), length), outputs=["logits"]) for text in TEXTS]
    for row, text in enumerate(TEXTS):
        expected = reference(text)
        count = len(expected["attention_received"])
        np.testing.assert_allclose(together["logits"][row], expected["logits"], atol=1e-3)
        np.testing.assert_allclose(
            together["attention_received"][row, :count], expected["attention_received"], rtol=1e-3
        )
        assert set(alone[row]) == {"logits"}
        np.testing.assert_allclose(alone[row]["logits"][0], expected["logits"], atol=1e-3)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("tiny_len16", request(length=15), "unexpected shape for input"),
        ("tiny_len16", request(rows=5), "batch-size must be <= 4"),
        ("line", request(length=15), "accepted is .rows, length. with length 16"),
        ("line", request(length=17), "accepted is .rows, length. with length 16"),
        ("line", request(rows=5), "the request has 5 rows; accepted are 1 to 4"),
        ("line", request(token=10_000), "input_ids holds the value 10000; accepted are 0 to"),
        ("line", request(token=-1), "input_ids holds the value -1"),
        ("line", {**request(), "attention_mask": request(token=2)["input_ids"]}, "attention_mask holds the value 2"),
        ("line", {k: v for k, v in request().items() if k != "token_type_ids"}, "accepted are .*token_type_ids"),
        ("line", {k: v.astype(np.int32) for k, v in request().items()}, "INT32|dtype|data-type|TYPE_INT64"),
    ],
)
def test_an_invalid_request_is_refused(url: str, model: str, inputs: Inputs, message: str) -> None:
    with Client(url) as client:
        with pytest.raises(InvalidArgument, match=message):
            client.infer(model, inputs)
        assert client.infer(model, request())["logits"].shape == (1, 3)


def test_a_request_that_misses_its_deadline_is_unavailable(url: str) -> None:
    with Client(url) as client:
        with pytest.raises(Unavailable, match=r"the deadline of 0\.001 ms passed before the request could run"):
            client.infer("line", request(), latency_ms=0.001)
        assert client.infer("line", request(), latency_ms=20_000)["logits"].shape == (1, 3)


def test_calls_of_other_models_get_coded_errors(server: RunningServer) -> None:
    """Triton passes only the message of an error to a model that calls another, see `tidal.serving.coded_errors`."""
    import tritonclient.grpc

    inputs = []
    for name, array in request(token=-1).items():
        inputs.append(tritonclient.grpc.InferInput(name, array.shape, "INT64"))
        inputs[-1].set_data_from_numpy(array)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        messages = []
        for parameters in (None, {CODED_ERRORS: True}):
            with pytest.raises(tritonclient.grpc.InferenceServerException) as caught:
                client.infer("line", inputs, parameters=parameters)
            messages.append(caught.value.message().partition("input_ids")[0])
    assert messages == ["", "[INVALID_ARG] "]


def test_an_invalid_request_in_a_batch_is_refused_alone(server: RunningServer) -> None:
    tokens = (5, 10_000, 9)
    with Client(f"grpc://{server.grpc}") as client, ThreadPoolExecutor(3) as pool:
        before = executions(server, "together")
        futures = [pool.submit(client.infer, "together", request(token=token)) for token in tokens]
        good, refused, other = (future.exception() or future.result() for future in futures)
        assert executions(server, "together") == before + 1
        alone = [client.infer("line", request(token=token)) for token in (5, 9)]
    assert isinstance(refused, InvalidArgument)
    for answer, expected in zip((good, other), alone, strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_allclose(answer["logits"], expected["logits"], atol=1e-4)


def executions(server: RunningServer, model: str) -> int:
    """Return the number of calls of `execute`, from Triton's statistics of the model."""
    import tritonclient.grpc

    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        return int(client.get_inference_statistics(model).model_stats[0].execution_count)


def cores_of(server: RunningServer, model: str) -> list[frozenset[int]]:
    """Return the cores that the threads of each instance may run on."""
    found = []
    for pid in server.stub_pids(model):
        threads = [thread.id for thread in psutil.Process(pid).threads()]
        found.append(frozenset().union(*(os.sched_getaffinity(thread) for thread in threads)))
    return found


def set_instances(server: RunningServer, model: str, count: int) -> None:
    server.control.load(model, with_instances(read_config(server.repository / model), count))


def test_the_instance_count_changes_in_place_under_load(server: RunningServer) -> None:
    before = set(server.stub_pids("tiny_len16"))
    stop = threading.Event()

    def ask(url: str) -> int:
        answered = 0
        with Client(url) as client:
            while not stop.is_set():
                assert client.infer("tiny_len16", request())["logits"].shape == (1, 3)
                answered += 1
        return answered

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask, url) for url in (f"http://{server.http}", f"grpc://{server.grpc}") * 2]
        try:
            for count in (3, 1):
                set_instances(server, "tiny_len16", count)
                assert until(lambda count=count: len(server.stub_pids("tiny_len16")) == count)
                now = set(server.stub_pids("tiny_len16"))
                assert now > before or now < before  # in place: the remaining instances were not restarted
                before = now
        finally:
            stop.set()
        assert all(client.result() > 0 for client in clients)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_each_instance_claims_another_core(server: RunningServer) -> None:
    def pinned() -> bool:
        """Return whether both have claimed a core; after a change of counts an instance may first find no free one."""
        with Client(f"grpc://{server.grpc}") as client:
            client.infer("tiny_len16", request())
        return all(len(cores_of(server, model)[0]) == 1 for model in ("tiny_len16", "tiny_len32"))

    assert until(pinned)
    short, long = cores_of(server, "tiny_len16"), cores_of(server, "tiny_len32")
    assert short[0] | long[0] == CORES
    assert cores_of(server, "line") == [CORES]  # pin: false

    set_instances(server, "tiny_len16", 2)
    try:
        assert sorted(cores_of(server, "tiny_len16"), key=len) == [short[0], CORES]  # no core was left
        (pid,) = server.stub_pids("tiny_len32")
        os.kill(pid, signal.SIGKILL)

        def claimed() -> bool:
            with Client(f"grpc://{server.grpc}") as client, ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda _: client.infer("tiny_len16", request()), range(8)))
            return set(cores_of(server, "tiny_len16")) == {short[0], long[0]}

        assert until(claimed)
    finally:
        set_instances(server, "tiny_len16", 1)
        server.control.unload("tiny_len32")
        server.control.load("tiny_len32", None)


def test_an_instance_without_a_claim_serves(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(built / "tiny_len16", tmp_path / "repository" / "tiny_len16")
    for core in os.sched_getaffinity(0):
        (tmp_path / "claims" / f"core{core}").mkdir(parents=True)  # no file to lock
    monkeypatch.setenv(CLAIMS_VARIABLE, str(tmp_path / "claims"))
    with running_server(tmp_path / "repository") as server, Client(f"grpc://{server.grpc}") as client:
        assert client.infer("tiny_len16", request())["logits"].shape == (1, 3)
        assert "runs without a core or GPU of its own: " in server.log_text()
        assert cores_of(server, "tiny_len16") == [frozenset(os.sched_getaffinity(0))]
