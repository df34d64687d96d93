"""A front whose short runtime is on another node: who sends the queries there, and what happens when it fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from testing.requests import make_context
from tests.arlo.manifests import LENGTHS, OUTPUTS, Tokenizer, make_manifest
from tests.arlo.nodes import HttpServer
from tests.arlo.test_partitioned_service import Instances, Request, answered
from tidal.arlo.node_http import HttpAnswer, HttpNodeChannel
from tidal.arlo.partitioned import PartitionedService, WatchedAllocation
from tidal.arlo.policies import PartitionedPolicy
from tidal.repository.allocation import ALLOCATION_VARIABLE, make_allocation, write_allocation
from tidal.repository.cluster_table import ClusterTable, RemoteNode, write_cluster_table
from tidal.text import TextTokenizer
from tidal_client.codec import InferRequest

# Expected latency by runtime: the node's short one answers first, whatever waits.
_LATENCIES_S = (0.001, 0.5, 1.0)


@pytest.fixture(autouse=True)
def by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOCATION_VARIABLE, "file")


@pytest.fixture
def node() -> Iterator[HttpServer]:
    running = HttpServer()
    yield running
    running.stop()


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Threads that sent a query without waiting for its answer."""
    found: list[threading.Thread] = []
    start = HttpNodeChannel.start

    def noting(channel: HttpNodeChannel, request: InferRequest, version: int, timeout_s: float) -> HttpAnswer | None:
        answer = start(channel, request, version, timeout_s)
        if answer is not None:
            found.append(threading.current_thread())
        return answer

    monkeypatch.setattr(HttpNodeChannel, "start", noting)
    return found


@contextmanager
def serving(folder: Path, node: RemoteNode, local: Instances) -> Iterator[PartitionedService]:
    """A front with one own instance, of the longest runtime."""
    write_allocation(folder, make_allocation(dict(zip(LENGTHS, (0, 0, 1), strict=True))))
    write_cluster_table(folder, ClusterTable(nodes={"b": node}))
    context = make_context(folder, outputs=OUTPUTS)
    allocation = WatchedAllocation(context, LENGTHS)
    policy = PartitionedPolicy(LENGTHS, _LATENCIES_S, 0.02, allocation.instances)
    service = PartitionedService(context, make_manifest(), cast(TextTokenizer, Tokenizer()), policy, local, allocation)
    try:
        yield service
    finally:
        local.go.set()
        service.close(5)


def runtimes(requests: Sequence[Request]) -> list[int]:
    return [request.ran_on for request in requests]


def test_the_submitting_thread_sends_as_soon_as_there_is_a_connection(
    tmp_path: Path, node: HttpServer, senders: list[threading.Thread]
) -> None:
    requests = [Request(10) for _ in range(5)]
    with serving(tmp_path, node.address(), Instances()) as service:
        for request in requests:
            service.submit([request])
            assert answered(request)
    assert runtimes(requests) == [16] * 5
    assert senders == [threading.main_thread()] * 4


def test_a_node_that_hangs_does_not_delay_the_submitting_thread(
    tmp_path: Path, node: HttpServer, senders: list[threading.Thread]
) -> None:
    local = Instances()
    first, stuck = Request(10), Request(10)
    with serving(tmp_path, node.address(), local) as service:
        service.submit([first])
        assert answered(first)
        node.node.go.clear()
        service.submit([stuck])
        assert senders == [threading.main_thread()]
        assert (stuck.answered, local.calls) == (False, 0)
        # The call is given up after a second and ten times the latency, and the own instance answers.
        assert answered(stuck)
    assert stuck.ran_on == 64


def test_a_node_that_is_gone(tmp_path: Path, node: HttpServer, senders: list[threading.Thread]) -> None:
    requests = [Request(10) for _ in range(4)]
    with serving(tmp_path, node.address(), Instances()) as service:
        service.submit(requests[:1])
        assert answered(requests[0])
        node.stop()
        service.submit(requests[1:])
        assert answered(*requests)
    assert runtimes(requests) == [16, 64, 64, 64]
