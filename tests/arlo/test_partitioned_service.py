"""The partitioned service without a server: unavailable instances, changes of versions and allocations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from testing.requests import FakeRequest, make_context
from testing.waiting import until
from tests.arlo.manifests import LENGTHS, OUTPUTS, Tokenizer, make_manifest
from tidal.arlo.instances import RuntimeModels
from tidal.arlo.loading import load
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.partitioned import PartitionedService, WatchedAllocation
from tidal.arlo.policies import PartitionedPolicy
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Internal, InvalidArgument, Unavailable
from tidal.manifest import MANIFEST_FILE
from tidal.metrics import Metrics
from tidal.repository.allocation import ALLOCATION_FILE, ALLOCATION_VARIABLE, make_allocation, write_allocation
from tidal.requests import Array
from tidal.service import ModelUnavailable
from tidal.text import TextTokenizer
from tidal.triton.parameters import parse_parameters


class Request(FakeRequest):
    """A request for one query of `length` tokens."""

    def __init__(self, length: int, latency_ms: float | None = None) -> None:
        super().__init__({"input_ids": np.full((1, length), 7)}, wanted=OUTPUTS, latency_ms=latency_ms)

    @property
    def ran_on(self) -> int:
        assert self.outputs is not None
        return int(self.outputs["max_length"][0, 0])


class Instances:
    """A runner that counts concurrent runs and fails on demand."""

    def __init__(self, fail: Callable[[int, int], Exception | None] = lambda runtime, call: None) -> None:
        self._fail = fail
        self._lock = threading.Lock()
        self.running = [0] * len(LENGTHS)
        self.most = [0] * len(LENGTHS)
        self.calls = 0
        self.go = threading.Event()
        self.go.set()

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        with self._lock:
            self.calls += 1
            call = self.calls
            self.running[runtime] += 1
            self.most[runtime] = max(self.most[runtime], self.running[runtime])
        try:
            self.go.wait(10)
            error = self._fail(runtime, call)
            if error is not None:
                raise error
            return {"logits": np.zeros((len(rows), 2), np.float32)}
        finally:
            with self._lock:
                self.running[runtime] -= 1


@contextmanager
def running(
    folder: Path,
    runner: Instances,
    instances: tuple[int, int, int] = (1, 1, 1),
    metrics: Metrics | None = None,
    *,
    entrance: bool = True,
) -> Iterator[PartitionedService]:
    """A service over a folder with this allocation."""
    write_allocation(folder, make_allocation(dict(zip(LENGTHS, instances, strict=True)), entrance=entrance))
    context = make_context(folder, metrics or Metrics("arlo"), outputs=OUTPUTS)
    manifest = make_manifest()
    allocation = WatchedAllocation(context, LENGTHS)
    policy = PartitionedPolicy(LENGTHS, [0.001] * 3, 0.02, allocation.instances, accepts=allocation.entrance)
    tokenizer = cast(TextTokenizer, Tokenizer())
    service = PartitionedService(context, manifest, tokenizer, policy, runner, allocation)
    try:
        yield service
    finally:
        runner.go.set()
        service.close(5)


@pytest.fixture(autouse=True)
def by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOCATION_VARIABLE, "file")


def gone(died: bool = False) -> ModelUnavailable:
    return ModelUnavailable("model 'm_len16' is not ready", died=died)


def answered(*requests: Request) -> bool:
    return until(lambda: all(request.answered for request in requests))


class TestUnavailableInstances:
    def test_another_runtime_serves_the_query(self, tmp_path: Path) -> None:
        metrics = Metrics("arlo")
        request = Request(10)
        with running(tmp_path, Instances(lambda runtime, _: gone() if runtime == 0 else None), metrics=metrics) as s:
            s.submit([request])
            assert answered(request)
        assert request.ran_on == 32
        assert metrics.counter("put_back_queries_total", "", runtime="16").value == 1

    def test_the_only_runtime_that_fits_is_retried(self, tmp_path: Path) -> None:
        runner = Instances(lambda _, call: gone() if call <= 5 else None)
        request = Request(60)
        with running(tmp_path, runner) as service:
            service.submit([request])
            assert answered(request)
        assert request.ran_on == 64
        assert runner.calls == 6

    def test_a_query_that_crashes_processes_fails_after_three_attempts(self, tmp_path: Path) -> None:
        runner = Instances(lambda _, call: gone(died=True) if call <= 3 else None)
        poison, other = Request(60), Request(60)
        with running(tmp_path, runner) as service:
            service.submit([poison])
            assert answered(poison)
            service.submit([other])
            assert answered(other)
        assert isinstance(poison.error, Internal)
        assert "the process to run this query crashed or was down 3 times" in str(poison.error)
        assert other.ran_on == 64

    def test_an_engine_error_fails_its_query_only(self, tmp_path: Path) -> None:
        errors = {1: ValueError("odd"), 2: Unavailable("the server ends"), 3: InvalidArgument("too long")}
        runner = Instances(lambda _, call: errors.get(call))
        requests = [Request(60) for _ in range(4)]
        with running(tmp_path, runner) as service:
            for request in requests:
                service.submit([request])
                assert answered(request)
        assert [type(request.error) for request in requests] == [Internal, Unavailable, InvalidArgument, type(None)]
        assert str(requests[0].error) == "the engine failed: odd"
        assert runner.calls == 4

    def test_closing_ends_retries(self, tmp_path: Path) -> None:
        request = Request(60)
        with running(tmp_path, Instances(lambda *_: gone())) as service:
            service.submit([request])
            assert until(lambda: service._service._failures[2] > 0)
        assert isinstance(request.error, Unavailable)


class TestAllocation:
    def test_concurrency_follows_the_instances_during_a_change(self, tmp_path: Path) -> None:
        runner = Instances()
        runner.go.clear()
        requests = [Request(length) for length in (10, 30, 60) * 10]
        with running(tmp_path, runner, (2, 0, 1)) as service:
            service.submit(requests)
            assert until(lambda: runner.running == [2, 0, 1])
            write_allocation(tmp_path, make_allocation({16: 1, 32: 2, 64: 1}))
            assert until(lambda: service._policy.instances == [2, 2, 1])
            assert runner.running[0] == 2
            later = [Request(30) for _ in range(4)]
            service.submit(later)
            assert until(lambda: runner.running == [2, 2, 1])
            runner.go.set()
            assert answered(*requests, *later)
            assert until(lambda: service._policy.instances == [1, 2, 1])
        assert runner.most == [2, 2, 1]
        assert not any(request.error for request in (*requests, *later))

    def test_during_a_change_the_smaller_count_applies(self, tmp_path: Path) -> None:
        metrics = Metrics("arlo")
        with running(tmp_path, Instances(), (2, 1, 1), metrics=metrics):
            gauges = [metrics.gauge("instances", "", runtime=str(length)) for length in LENGTHS]
            assert [gauge.value for gauge in gauges] == [2, 1, 1]
            write_allocation(tmp_path, make_allocation({16: 1, 32: 3, 64: 1}, {16: 2, 32: 1, 64: 1}))
            assert until(lambda: [gauge.value for gauge in gauges] == [1, 1, 1])
            write_allocation(tmp_path, make_allocation({16: 1, 32: 3, 64: 1}))
            assert until(lambda: [gauge.value for gauge in gauges] == [1, 3, 1])
        assert [gauge.value for gauge in gauges] == [0, 0, 0]

    def test_one_worker_per_instance(self, tmp_path: Path) -> None:
        def workers() -> int:
            return sum(thread.name == "m-worker" for thread in threading.enumerate())

        before = workers()
        with running(tmp_path, Instances()):
            assert workers() == before + 4
            write_allocation(tmp_path, make_allocation({16: 8, 32: 1, 64: 1}))
            assert until(lambda: workers() == before + 11)
            write_allocation(tmp_path, make_allocation({16: 0, 32: 0, 64: 1}))
            assert until(lambda: workers() == before + 2)
        assert until(lambda: workers() == before)

    def test_a_broken_file_changes_nothing_and_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_allocation(tmp_path, make_allocation({16: 2, 32: 1, 64: 1}))
        watched = WatchedAllocation(make_context(tmp_path, outputs=OUTPUTS), LENGTHS)
        (tmp_path / ALLOCATION_FILE).write_text("{")
        assert [watched.refresh() for _ in range(3)] == [False] * 3
        assert watched.instances == [2, 1, 1]
        assert caplog.text.count("the allocation stays at [2, 1, 1]") == 1
        write_allocation(tmp_path, make_allocation({16: 1, 32: 1, 64: 1}))
        assert watched.refresh()
        assert watched.instances == [1, 1, 1]

    def test_the_longest_runtime_keeps_an_instance(self, tmp_path: Path) -> None:
        """Without it the policy would refuse the allocation, at every start."""
        with running(tmp_path, Instances(), (2, 1, 2)) as service:
            write_allocation(tmp_path, make_allocation({16: 1, 32: 1, 64: 2}, {16: 2, 32: 1, 64: 0}))
            assert until(lambda: service._policy.instances == [1, 1, 1])
            request = Request(60)
            service.submit([request])
            assert answered(request)
        assert request.ran_on == 64

    def test_an_allocation_that_the_policy_refuses_changes_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_allocation(tmp_path, make_allocation({16: 2, 32: 1, 64: 1}))
        watched = WatchedAllocation(make_context(tmp_path, outputs=OUTPUTS), LENGTHS)
        monkeypatch.setattr("tidal.repository.allocation.configured_instances", lambda *_: {16: 1, 32: 1, 64: 0})
        (tmp_path / ALLOCATION_FILE).unlink()
        assert not watched.refresh()
        assert watched.instances == [2, 1, 1]
        assert "the longest runtime, 64, needs at least 1 instance, got 0" in caplog.text

    def test_a_change_with_the_same_modification_time_is_read(self, tmp_path: Path) -> None:
        file = tmp_path / ALLOCATION_FILE
        write_allocation(tmp_path, make_allocation({16: 2, 32: 1, 64: 1}))
        os.utime(file, ns=(0, 0))
        watched = WatchedAllocation(make_context(tmp_path, outputs=OUTPUTS), LENGTHS)
        write_allocation(tmp_path, make_allocation({16: 1, 32: 2, 64: 1}))
        os.utime(file, ns=(0, 0))
        assert watched.refresh()
        assert watched.instances == [1, 2, 1]

    def test_a_restart_reads_the_current_allocation(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ArloManifest, "check", lambda *_: None)
        monkeypatch.setattr("tidal.arlo.model.TextTokenizer", lambda *_, **__: Tokenizer())
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / MANIFEST_FILE).write_text(make_manifest().model_dump_json())
        write_allocation(tmp_path, make_allocation({16: 2, 32: 1, 64: 1}))
        context = make_context(tmp_path, outputs=OUTPUTS)
        start = load(context, ArloParameters())
        write_allocation(tmp_path, make_allocation({16: 1, 32: 0, 64: 3}))
        service = start(context)
        try:
            assert cast(PartitionedService, service)._policy.instances == [1, 0, 3]
        finally:
            service.close(5)

    def test_a_broken_file_is_refused_at_start(self, tmp_path: Path) -> None:
        (tmp_path / ALLOCATION_FILE).write_text('{"instances": {"16": 1}}')
        with pytest.raises(InvalidArgument, match="instances lacks 32, 64"):
            WatchedAllocation(make_context(tmp_path, outputs=OUTPUTS), LENGTHS)


class Server:
    """Models that serve one version each; records the calls."""

    def __init__(self, serving: int) -> None:
        self.serving = serving
        self.asked: list[tuple[str, int]] = []
        self.latency_ms: float | None = None

    def __call__(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        *,
        version: int,
        latency_ms: float | None = None,
        task: str | None = None,
    ) -> dict[str, Array]:
        self.asked.append((model, version))
        self.inputs, self.latency_ms = inputs, latency_ms
        if version != self.serving:
            raise ModelUnavailable(f"model '{model}' is not ready", died=False)
        return {name: np.zeros((1, 2), np.float32) for name in outputs}


class TestVersions:
    def models(self, folder: Path, server: Server, *, version: int = 1, **others: ArloManifest) -> RuntimeModels:
        """Return the runtime models of a front of this version; `v2`, `v3` … are published too."""
        for name, manifest in {"v1": make_manifest(), **others}.items():
            (folder / name[1:]).mkdir()
            (folder / name[1:] / MANIFEST_FILE).write_text(manifest.model_dump_json())
        return RuntimeModels(server, "m", folder, version, make_manifest())

    @staticmethod
    def ask(models: RuntimeModels, length: int = 10, deadline: float | None = None) -> dict[str, Any]:
        row = np.ones(length, np.int64)
        return models.run(0, 1, [TokenRow(row, row, row)], deadline)

    def test_the_own_version_is_called_with_padded_inputs(self, tmp_path: Path) -> None:
        server = Server(serving=1)
        assert set(self.ask(self.models(tmp_path, server, v2=make_manifest()))) == {"logits"}
        assert server.asked == [("m_len32", 1)]
        assert {name: array.shape for name, array in server.inputs.items()} == {
            "input_ids": (1, 32),
            "attention_mask": (1, 32),
        }
        assert server.inputs["attention_mask"].sum() == 10

    def test_another_version_with_the_same_tokenizer_and_labels_is_used(self, tmp_path: Path) -> None:
        server = Server(serving=2)
        models = self.models(tmp_path, server, v2=make_manifest(), v3=make_manifest())
        self.ask(models)
        self.ask(models)
        assert [version for _, version in server.asked] == [1, 3, 2, 2]

    @pytest.mark.parametrize("other", [make_manifest(tokenizer_sha="b"), make_manifest(labels=("yes", "no"))])
    def test_a_version_with_another_tokenizer_or_labels_is_not_used(self, tmp_path: Path, other: ArloManifest) -> None:
        server = Server(serving=2)
        with pytest.raises(ModelUnavailable):
            self.ask(self.models(tmp_path, server, v2=other))
        assert server.asked == [("m_len32", 1)]

    def test_the_remaining_time_is_the_deadline_of_the_call(self, tmp_path: Path) -> None:
        server = Server(serving=1)
        models = self.models(tmp_path, server)
        self.ask(models, deadline=time.monotonic() + 5)
        assert server.latency_ms is not None
        assert 0 < server.latency_ms <= 5000
        self.ask(models, deadline=time.monotonic() - 5)
        assert 0 < server.latency_ms < 1
        self.ask(models)
        assert server.latency_ms is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("slo_ms", v) for v in ("0", "-1", "soon", "nan", "inf", "3600001")]
    + [("congestion_threshold", "0"), ("threshold_decay", "1.1"), ("peek_levels", "0"), ("peek_levels", "2.5")],
)
def test_parameters_out_of_range_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=f"parameter '{name}' in config.pbtxt is '{value}'.*partitioned only"):
        parse_parameters({name: {"string_value": value}}, ArloParameters)


@pytest.mark.parametrize(("name", "value"), [("service_weight", "soon"), ("max_queue_size", "0")])
def test_parameters_of_any_placement_out_of_range_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=f"parameter '{name}' in config.pbtxt is '{value}'"):
        parse_parameters({name: {"string_value": value}}, ArloParameters)


def test_the_papers_parameters_are_the_defaults() -> None:
    _, parameters = parse_parameters({"slo_ms": {"string_value": "480"}}, ArloParameters)
    assert (parameters.slo_ms, parameters.congestion_threshold) == (480, 0.85)
    assert (parameters.threshold_decay, parameters.peek_levels) == (0.9, 6)
