"""The front of a node that is no entrance, without a server: it refuses queries and answers those it had accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testing.waiting import until
from tests.arlo.manifests import LENGTHS
from tests.arlo.placing import start
from tests.arlo.test_partitioned_service import Instances, Request, answered, by_file, gone, running
from tidal.arlo.policies import ArloQuery, PartitionedPolicy
from tidal.errors import InvalidArgument, Unavailable
from tidal.metrics import Metrics
from tidal.repository.allocation import (
    ALLOCATION_FILE,
    make_allocation,
    read_allocation,
    usable_allocation,
    write_allocation,
)
from tidal.repository.cluster_table import ClusterTable, RemoteNode, write_cluster_table

__all__ = ["by_file"]  # a fixture

NONE = {16: 2, 32: 1, 64: 0}
REFUSED = (
    "this node is no entrance of its cluster and runs queries of other nodes only; send the request to an entrance"
)


def stop_accepting(folder: Path) -> None:
    write_allocation(folder, make_allocation(NONE, entrance=False))


def refused(submit: Callable[[list[Request]], None]) -> str | None:
    request = Request(10)
    submit([request])
    if not isinstance(request.error, Unavailable):
        return None
    assert request.outputs is None
    return str(request.error)


class TestFile:
    def test_it_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        stop_accepting(tmp_path)
        assert (
            read_allocation(tmp_path) == usable_allocation(tmp_path, LENGTHS) == make_allocation(NONE, entrance=False)
        )
        write_allocation(tmp_path, make_allocation({16: 1, 64: 1}))
        assert "entrance" not in (tmp_path / ALLOCATION_FILE).read_text()

    def test_an_entrance_needs_the_longest_runtime_and_no_other_node(self) -> None:
        with pytest.raises(InvalidArgument, match="the longest runtime, 64, needs at least 1 instance, got 0"):
            make_allocation(NONE)
        assert make_allocation(NONE, entrance=False).serving() == NONE
        changing = make_allocation({16: 1, 64: 1}, {16: 1, 64: 0})
        assert changing.serving() == {16: 1, 64: 1}
        during = make_allocation({16: 1, 64: 1}, {16: 1, 64: 0}, entrance=False)
        assert (during.serving(), during.completed()) == (
            {16: 1, 64: 0},
            make_allocation({16: 1, 64: 1}, entrance=False),
        )


class TestFront:
    def test_it_refuses_queries_names_entrances_and_accepts_again(self, tmp_path: Path) -> None:
        metrics = Metrics("arlo")
        with running(tmp_path, Instances(), metrics=metrics) as service:
            gauges = [metrics.gauge("instances", "", runtime=str(length)) for length in LENGTHS]
            stop_accepting(tmp_path)
            assert until(lambda: refused(service.submit) == f"{REFUSED}: none is known")
            assert until(lambda: [gauge.value for gauge in gauges] == [2, 1, 0])
            addresses = {name: f"10.0.0.{at}:8001" for at, name in enumerate("abcde")}
            write_cluster_table(tmp_path, ClusterTable(nodes={}, entrances=addresses))
            named = "a at 10.0.0.0:8001, b at 10.0.0.1:8001, c at 10.0.0.2:8001"
            assert until(lambda: refused(service.submit) == f"{REFUSED}: {named}")
            write_allocation(tmp_path, make_allocation({16: 1, 32: 1, 64: 1}))
            assert until(lambda: refused(service.submit) is None)
            request = Request(60)
            service.submit([request])
            assert answered(request)
            assert request.ran_on == 64

    def test_it_starts_without_the_longest_runtime(self, tmp_path: Path) -> None:
        with running(tmp_path, Instances(), (2, 1, 0), entrance=False) as service:
            assert refused(service.submit) == f"{REFUSED}: none is known"

    def test_queries_that_it_had_accepted_keep_the_longest_runtime_until_they_are_answered(
        self, tmp_path: Path
    ) -> None:
        runner = Instances()
        runner.go.clear()
        requests = [Request(length) for length in (60, 60, 60, 10)]
        with running(tmp_path, runner) as service:
            service.submit(requests)
            assert until(lambda: runner.running == [1, 0, 1])
            stop_accepting(tmp_path)
            assert until(lambda: refused(service.submit) is not None)
            assert until(lambda: service._policy.instances == [2, 1, 1])
            runner.go.set()
            assert answered(*requests)
            assert until(lambda: service._policy.instances == [2, 1, 0])
        assert [request.ran_on for request in requests] == [64, 64, 64, 16]

    def test_an_accepted_query_is_requeued_where_its_instance_fails_meanwhile(self, tmp_path: Path) -> None:
        failures = iter(range(3))
        runner = Instances(lambda runtime, _: gone() if runtime == 2 and next(failures, None) is not None else None)
        runner.go.clear()
        request = Request(60)
        with running(tmp_path, runner) as service:
            service.submit([request])
            assert until(lambda: runner.running == [0, 0, 1])
            stop_accepting(tmp_path)
            assert until(lambda: refused(service.submit) is not None)
            runner.go.set()
            assert answered(request)
            assert until(lambda: service._policy.instances == [2, 1, 0])
        assert (request.ran_on, request.error, next(failures, None)) == (64, None, None)

    def test_it_dispatches_to_no_other_node(self, tmp_path: Path) -> None:
        other = RemoteNode(grpc="127.0.0.1:9", instances={16: 4, 32: 4, 64: 4})
        with running(tmp_path, Instances()) as service:
            write_cluster_table(tmp_path, ClusterTable(nodes={"b": other}))
            assert until(lambda: service._policy.max_concurrency == 15)
            stop_accepting(tmp_path)
            write_cluster_table(tmp_path, ClusterTable(nodes={}, entrances={"b": "127.0.0.1:9"}))
            assert until(lambda: service._policy.max_concurrency == 3)
            assert until(lambda: service._service._wanted == 4)


class TestPolicy:
    def policy(self) -> PartitionedPolicy:
        return PartitionedPolicy(LENGTHS, [0.001] * 3, 0.02, [1, 1, 1])

    def test_the_longest_runtime_goes_only_without_outstanding_queries(self) -> None:
        policy = self.policy()
        policy.submit(ArloQuery(60, 0.0))
        with pytest.raises(InvalidArgument, match="at least 1 for the longest runtime"):
            policy.allocate([1, 1, 0], accepts=False)  # it waits
        batch = start(policy)
        with pytest.raises(InvalidArgument, match="at least 1 for the longest runtime"):
            policy.allocate([1, 1, 0], accepts=False)  # it runs
        assert policy.instances == [1, 1, 1]
        policy.finished(batch)
        policy.allocate([1, 1, 0], accepts=False)
        assert policy.instances == [1, 1, 0]

    def test_an_entrance_keeps_it(self) -> None:
        with pytest.raises(InvalidArgument, match="at least 1 for the longest runtime"):
            self.policy().allocate([1, 1, 0])
        with pytest.raises(InvalidArgument, match=r"expected 3 counts$"):
            self.policy().allocate([1, 1], accepts=False)
