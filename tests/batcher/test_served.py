"""Batches formed by the custom batcher on the real server, and batches that the `engine` backend regroups."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from testing.servers import RunningServer, running_server
from testing.waiting import until
from tests.batcher.engines import publish_summing_engine
from tidal.batcher.build import build
from tidal.batcher.library import LIBRARY
from tidal.repository.config import read_config

pytestmark = [pytest.mark.server, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]

MOST = 8  # rows of a batch
# Every size is preferred: Triton adds nothing to a batch that was formed.
FINAL = f"preferred_batch_size: {list(range(1, MOST + 1))}"

# By name of a model that answers which requests ran together: its dynamic_batching, and the batcher's parameters.
PROBES: dict[str, tuple[str, dict[str, object]]] = {
    "tokens": (FINAL, {"TOKENS": 40}),
    "bins": (FINAL, {"LENGTH_BIN": 16}),
    "tasks": (FINAL, {"KEY": "task"}),
    "urgency": (FINAL, {"DEADLINE_SPREAD_MS": 5000, "UTILITY_SPREAD": 0.5}),
    "together": (FINAL, {"TOKENS": 40, "KEY": "task"}),
    "open": ("max_queue_delay_microseconds: 1500000", {"WAIT_MS": 50}),
    "hint": ("", {"KEY": "task"}),
    "bad": (FINAL, {"TOKENS": "many"}),
}
# Of the `engine` backend, on an engine that sums any number of tokens.
ENGINES: dict[str, tuple[str, dict[str, object]]] = {
    "mixed": ("max_queue_delay_microseconds: 1500000", {"TOKENS": 64}),
    "sorted": (FINAL, {"LENGTH_BIN": 1}),
}


def config(backend: str, inputs: Sequence[str], output: str, batching: str, parameters: Mapping[str, object]) -> str:
    ragged = "data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true"
    given = {f"TIDAL_BATCH_{key}" if key.isupper() else key: value for key, value in parameters.items()}
    given["TRITON_BATCH_STRATEGY_PATH"] = LIBRARY.file
    return (
        f'backend: "{backend}"\nmax_batch_size: {MOST}\n'
        + "".join(f'input {{ name: "{name}" {ragged} }}\n' for name in inputs)
        + f"output {{ {output} }}\ninstance_group {{ kind: KIND_CPU count: 1 }}\ndynamic_batching {{ {batching} }}\n"
        + "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in given.items()
        )
    )


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gates: Path) -> Iterator[RunningServer]:
    build()
    repository = tmp_path_factory.mktemp("repository")
    source = Path(__file__).with_name("probe_model.py")
    for name, (batching, parameters) in PROBES.items():
        (repository / name / "1").mkdir(parents=True)
        shutil.copy(source, repository / name / "1" / "model.py")
        output = 'name: "execution" data_type: TYPE_INT32 dims: [ 1 ]'
        text = config("python", ["input_ids"], output, batching, {**parameters, "gate": gates / name})
        (repository / name / "config.pbtxt").write_text(text)
    for name, (batching, parameters) in ENGINES.items():
        publish_summing_engine(repository / name, max_batch=4)
        output = 'name: "logits" data_type: TYPE_FP32 dims: [ -1 ]'
        text = config("engine", ["input_ids", "attention_mask"], output, batching, {**parameters, "pin": "false"})
        (repository / name / "config.pbtxt").write_text(text)
    arguments = ("--disable-auto-complete-config", "--model-load-thread-count=8")
    with running_server(repository, arguments=arguments) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends requests to one model without waiting for their answers."""

    client: Any
    model: str

    def __call__(self, *inputs: np.ndarray[Any, Any], **options: Any) -> Future[Any]:
        given = []
        for name, array in zip(("input_ids", "attention_mask"), inputs, strict=False):
            given.append(tritonclient.grpc.InferInput(name, array.shape, "INT64"))
            given[-1].set_data_from_numpy(array)
        answer: Future[Any] = Future()

        def take(result: Any, error: Any) -> None:
            answer.set_exception(error) if error else answer.set_result(result)

        self.client.async_infer(self.model, given, take, parameters=options or None)
        return answer


@pytest.fixture
def sender(server: RunningServer) -> Iterator[Callable[[str], Sender]]:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        yield lambda model: Sender(client, model)


def tokens(length: int, rows: int = 1, value: int = 1) -> np.ndarray[Any, Any]:
    return np.full((rows, length), value, np.int64)


def waiting(server: RunningServer, model: str) -> float:
    pattern = rf'nv_inference_pending_request_count\{{model="{model}",version="1"\}} (\S+)'
    found = re.search(pattern, server.metrics_text())
    return float(found.group(1)) if found else 0.0


def groups(answers: Sequence[Future[Any]]) -> list[list[int]]:
    """Places of the requests that ran together, in the order in which they ran."""
    ran = defaultdict(list)
    for place, answer in enumerate(answers):
        ran[int(answer.result(20).as_numpy("execution")[0, 0])].append(place)
    return [ran[execution] for execution in sorted(ran)]


Request = tuple[int, Mapping[str, object]]  # length and options


def batches(
    server: RunningServer, send: Sender, gates: Path, requests: Sequence[Request], *, fill: bool
) -> list[list[int]]:
    """How requests that wait together are batched; with `fill` behind two full batches.

    Triton has two batches wait for an instance; what comes then waits in its queue.
    """
    gate = gates / send.model
    gate.touch()
    send(tokens(1, value=-1))
    assert until(gate.with_suffix(".reached").exists)
    full: list[Request] = [(1, {})] * (2 if fill else 0)
    answers = []
    for place, (length, options) in enumerate([*full, *requests]):
        answers.append(send(tokens(length, rows=MOST if place < len(full) else 1), **options))
        assert until(lambda: waiting(server, send.model) == len(answers))
    gate.with_suffix(".reached").unlink()
    gate.unlink()
    return groups(answers[len(full) :])


A, B = {"task": "a"}, {"task": "b"}
OF_LENGTHS = [(length, {}) for length in (10, 10, 10, 10, 10, 30, 5, 50, 1, 1)]
WITH_DEADLINES = [(1, {"latency_ms": 100}), (1, {"latency_ms": 4000.5}), (1, {"latency_ms": 60_000}), (1, {})]
VALUED = [(1, {"utility": 1.5}), (1, {"utility": "0.5"}), (1, {"utility": 2})]
ODD = [(1, {"latency_ms": "soon"}), (1, {"latency_ms": float("nan"), "utility": True}), (1, {"utility": 1e308})]
LONG = [(1, {"task": "x" * 100_000}), (1, {"task": "x" * 100_000}), (1, {"task": -(2**63)})]


@pytest.mark.parametrize(
    ("model", "requests", "expected"),
    [
        ("tokens", OF_LENGTHS, [[0, 1, 2, 3], [4], [5], [6], [7], [8, 9]]),
        ("bins", [(1, {}), (16, {}), (17, {}), (32, {}), (3, {})], [[0, 1], [2, 3], [4]]),
        ("tasks", [(1, A), (9, A), (1, B), (1, {}), (1, A)], [[0, 1], [2], [3], [4]]),
        ("urgency", [*WITH_DEADLINES, *VALUED], [[0, 1], [2], [3, 4, 5], [6]]),
        ("together", [(10, A), (10, A), (30, A), (5, B), (10, B)], [[0, 1], [2], [3, 4]]),
        ("urgency", ODD, [[0, 1], [2]]),
        ("tasks", LONG, [[0, 1], [2]]),
    ],
)
def test_batches_are_those_of_the_strategy(
    server: RunningServer,
    sender: Callable[[str], Sender],
    gates: Path,
    model: str,
    requests: Sequence[Request],
    expected: list[list[int]],
) -> None:
    assert batches(server, sender(model), gates, requests, fill=True) == expected


def test_a_batch_closes_when_its_oldest_request_has_waited(
    server: RunningServer, sender: Callable[[str], Sender]
) -> None:
    """Otherwise both would wait for others and run together."""
    send = sender("open")
    answers = [send(tokens(1))]
    assert until(lambda: waiting(server, "open") == 1 or answers[0].done())
    time.sleep(0.1)
    answers.append(send(tokens(1)))
    assert groups(answers) == [[0], [1]]


def test_a_batch_that_waits_for_an_instance_may_accept_other_requests(
    server: RunningServer, sender: Callable[[str], Sender], gates: Path
) -> None:
    """Without all sizes preferred the strategy is a hint, so backends must check the batches that they get."""
    ran = batches(server, sender("hint"), gates, [(1, A), (1, B)] * 3, fill=False)
    assert any({place % 2 for place in batch} == {0, 1} for batch in ran)
    assert "more requests may join a batch that waits for an instance" in server.log_text()


def executions(send: Sender) -> int:
    return int(send.client.get_inference_statistics(send.model).model_stats[0].execution_count)


@pytest.mark.parametrize("model", ENGINES)
def test_the_engine_backend_regroups_batches(sender: Callable[[str], Sender], model: str) -> None:
    """Within the token budget of `mixed`, and within the bins of `sorted`, one after another."""
    send = sender(model)
    before = executions(send)
    sizes = [(3, 1), (5, 2), (3, 2), (7, 1), (5, 1), (3, 1)]
    answers = [send(tokens(length, rows, 2), tokens(length, rows)) for length, rows in sizes]
    for (length, rows), answer in zip(sizes, answers, strict=True):
        np.testing.assert_array_equal(answer.result(20).as_numpy("logits"), np.full((rows, 1), 2.0 * length))
    if model == "mixed":
        assert executions(send) - before <= 2  # so of mixed lengths


def test_a_bad_parameter_refuses_the_model_alone(server: RunningServer) -> None:
    assert "parameter 'TIDAL_BATCH_TOKENS' in config.pbtxt is 'many'; expected" in server.load_error("bad")
    assert server.load_error("tokens") == ""


def test_models_are_reloaded_under_load(server: RunningServer, sender: Callable[[str], Sender]) -> None:
    """A model's batcher is finalized while the thread that calls it still runs."""
    send, stop = sender("tokens"), threading.Event()

    def ask() -> int:
        answered = 0
        while not stop.is_set():
            send(tokens(1 + answered % 30)).result(20)
            answered += 1
        return answered

    loaded = read_config(server.repository / "tokens")
    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        try:
            for budget in (41, 42, 43):
                parameters = {**loaded["parameters"], "TIDAL_BATCH_TOKENS": {"string_value": str(budget)}}
                server.control.load("tokens", {**loaded, "parameters": parameters})
        finally:
            stop.set()
        assert all(client.result() > 0 for client in clients)
    assert "at most 43 of input_ids" in server.log_text()
