"""Engines that are started by the thread that submits queries, without a server."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tests.arlo.manifests import LENGTHS, OUTPUTS, Tokenizer, make_manifest
from tidal.arlo.policies import ArloQuery, PolymorphicPolicy
from tidal.arlo.service import ArloService
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Internal
from tidal.profiles import LatencyProfile
from tidal.requests import Array
from tidal.text import TextTokenizer

MAX_BATCH = 4


class Request(FakeRequest):
    """A request for one query, whose logits are its id and length."""

    def __init__(self, number: int = 7, length: int = 5, latency_ms: float | None = None) -> None:
        super().__init__({"input_ids": np.full((1, length), number)}, wanted=OUTPUTS, latency_ms=latency_ms)
        self.expected = [number, length]


class Engine:
    """A runner whose runs end when the test lets them; `threads` are those that waited for a run or ran one."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None
        self.threads: list[threading.Thread] = []
        self.batches: list[int] = []
        self.startable = True

    def start(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> Run | None:
        if self.error is not None:
            raise self.error
        return Run(self, rows) if self.startable else None

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        outputs = Run(self, rows).wait()
        assert outputs is not None
        return outputs


class Run:
    """A batch that runs."""

    def __init__(self, engine: Engine, rows: Sequence[TokenRow]) -> None:
        self._engine = engine
        self._rows = rows

    def wait(self, timeout_s: float | None = None) -> dict[str, Array] | None:
        self._engine.threads.append(threading.current_thread())
        if not self._engine.free.wait(timeout_s):
            return None
        self._engine.batches.append(len(self._rows))
        return {"logits": np.array([[row.ids[0], len(row.ids)] for row in self._rows], np.float32)}


def make_service(
    folder: Path, engine: Engine, latency_ms: float, failures: list[BaseException], *, grouped: bool = True
) -> ArloService:
    grid = tuple((latency_ms, latency_ms) for _ in LENGTHS)
    profile = LatencyProfile(lengths=LENGTHS, batches=(1, MAX_BATCH), median_ms=grid, p95_ms=grid, threads=1)
    policy = PolymorphicPolicy(LENGTHS, profile, static_upto=0, max_batch=MAX_BATCH)
    context = make_context(folder, outputs=OUTPUTS, failures=failures, grouped=grouped)
    return ArloService(context, make_manifest(), cast(TextTokenizer, Tokenizer()), policy, engine)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture(params=[0.5, 50.0])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, engine: Engine, failures: list[BaseException]
) -> Iterator[ArloService]:
    """A service whose batches are expected to be short, and one whose batches are not."""
    found = make_service(tmp_path, engine, request.param, failures)
    yield found
    engine.free.set()
    found.close(10)


def answered(requests: Sequence[Request]) -> bool:
    return all(request.wait()["logits"].tolist() == [request.expected] for request in requests)


def test_a_short_batch_is_answered_by_the_submitting_thread(
    tmp_path: Path, engine: Engine, failures: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal.arlo.submitter_wait.HERE_S", 60.0)  # the thread is not interrupted for so long
    service = make_service(tmp_path, engine, 0.5, failures)
    requests = [Request(number, length=3 + number) for number in range(2 * MAX_BATCH + 1)]
    service.submit(requests)
    assert all(request.answers == 1 for request in requests)
    assert answered(requests)
    assert set(engine.threads) == {threading.current_thread()}
    assert sum(engine.batches) == len(requests)
    service.close(10)


def test_a_long_batch_is_answered_by_a_worker(tmp_path: Path, engine: Engine, failures: list[BaseException]) -> None:
    service = make_service(tmp_path, engine, 50.0, failures)
    request = Request()
    service.submit([request])
    assert answered([request])
    assert threading.current_thread() not in engine.threads
    service.close(10)


def test_a_batch_that_runs_alone_is_answered_by_the_submitting_thread_unless_queries_have_deadlines(
    tmp_path: Path, engine: Engine, failures: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal.arlo.submitter_wait.ALONE_S", 60.0)  # the thread is not interrupted for so long
    service = make_service(tmp_path, engine, 10.0, failures)
    for latency_ms, here in ((None, True), (60_000.0, False), (None, False)):
        request = Request(latency_ms=latency_ms)
        service.submit([request])
        assert answered([request])
        assert (engine.threads[-1] is threading.current_thread()) == here
    service.close(10)


def test_submissions_of_one_request_each_do_not_wait_and_share_a_batch(
    tmp_path: Path, engine: Engine, failures: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal.arlo.submitter_wait.HERE_S", 60.0)
    monkeypatch.setattr("tidal.arlo.submitter_wait.ALONE_S", 60.0)
    service = make_service(tmp_path, engine, 0.5, failures, grouped=False)
    engine.free.clear()
    requests = [Request(number) for number in range(1 + MAX_BATCH)]
    for request in requests:
        service.submit([request])
    engine.free.set()
    assert answered(requests)
    assert engine.batches == [1, MAX_BATCH]
    service.close(10)


def test_a_hung_engine_does_not_keep_the_submitting_thread(service: ArloService, engine: Engine) -> None:
    engine.free.clear()
    first, second = Request(1), Request(2)
    for request in (first, second):
        submitting = threading.Thread(target=service.submit, args=([request],), daemon=True)
        submitting.start()
        submitting.join(30)
        assert not submitting.is_alive()
    assert (first.answers, second.answers) == (0, 0)
    engine.free.set()
    assert answered([first, second])
    assert (first.answers, second.answers) == (1, 1)


@pytest.mark.parametrize("startable", [True, False])
def test_queries_of_many_threads_are_answered_once(service: ArloService, engine: Engine, startable: bool) -> None:
    engine.startable = startable
    requests = [[Request(client * 10 + each) for each in range(5)] for client in range(8)]
    threads = [threading.Thread(target=service.submit, args=(some,)) for some in requests]
    for thread in threads:
        thread.start()
    assert answered([request for some in requests for request in some])
    for thread in threads:
        thread.join()
    assert all(request.answers == 1 for some in requests for request in some)


def test_a_failing_engine_fails_its_queries_only(
    service: ArloService, engine: Engine, failures: list[BaseException]
) -> None:
    engine.error = RuntimeError("out of memory")
    failed = Request(1)
    service.submit([failed])
    with pytest.raises(Internal, match="the engine failed: out of memory"):
        failed.wait()
    engine.error = None
    request = Request(2)
    service.submit([request])
    assert answered([request])
    assert not failures


def test_a_batch_that_was_handed_over_is_answered_before_the_end(service: ArloService, engine: Engine) -> None:
    engine.free.clear()
    requests = [Request(number) for number in range(3)]
    for request in requests:
        service.submit([request])
    closing = threading.Thread(target=service.close, args=(20.0,))
    closing.start()
    assert not until(lambda: not closing.is_alive(), seconds=0.05)
    engine.free.set()
    closing.join()
    assert answered(requests)
    late = Request()
    service.submit([late])
    assert late.answers == 1
    assert late.error is not None


def test_the_expected_latency_of_a_batch_is_that_of_its_profile() -> None:
    grid = tuple((float(length), 2.0 * length) for length in LENGTHS)
    profile = LatencyProfile(lengths=LENGTHS, batches=(1, 2), median_ms=grid, p95_ms=grid, threads=1)
    policy = PolymorphicPolicy(LENGTHS, profile, static_upto=0, max_batch=2)
    policy.submit(ArloQuery(32, 0.0))
    batch = policy.next_batch(0.0)
    assert batch is not None
    assert math.isclose(batch.seconds, 0.032)


def test_the_expected_latency_of_a_batch_follows_the_measured_ones() -> None:
    grid = tuple((float(length), 2.0 * length) for length in LENGTHS)
    slow = tuple((10.0 * length, 20.0 * length) for length in LENGTHS)
    profile = LatencyProfile(lengths=LENGTHS, batches=(1, 2), median_ms=grid, p95_ms=grid, threads=2)
    parallel = LatencyProfile(lengths=LENGTHS, batches=(1, 2), median_ms=slow, p95_ms=slow, threads=1, concurrency=2)
    policy = PolymorphicPolicy(LENGTHS, profile, parallel, static_upto=0, max_batch=2)
    expected = []
    for _ in range(200):
        policy.submit(ArloQuery(32, 0.0))
        batch = policy.next_batch(0.0)
        assert batch is not None
        expected.append(batch.seconds)
        policy.finished(batch, 0.064)
    assert math.isclose(expected[0], 0.032)
    assert math.isclose(expected[-1], 0.064, rel_tol=0.01)
