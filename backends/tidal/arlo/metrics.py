"""Metrics of the `arlo` backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.scheduling.scaling import IN_BELOW, OUT_AT
from tidal.engine_model.manifest import Runtime
from tidal.metrics import Deferred, Metrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
_DISTINCT_BUCKETS = (1, 3, 7, 15, 31)
# Three or so for each doubling.
_LENGTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


class BatchRun(NamedTuple):
    """A batch that ran.

    Attributes:
        runtime: `max_length` of the runtime that ran it, in tokens.
        lengths: Length of each query in tokens.
        padded: Length that the queries were padded to.
        waited_s: Time from arrival to execution of each query, in seconds.
        execute_s: Time of the engine, in seconds.
    """

    runtime: int
    lengths: Sequence[int]
    padded: int
    waited_s: Sequence[float]
    execute_s: float


def length_bounds(runtimes: Sequence[int]) -> list[int]:
    """Return the bounds of the ranges that query lengths are counted in, ascending, in tokens.

    Those of the runtimes say which one a query was for; those between them say what other lengths would be better.

    Args:
        runtimes: `max_length` of each runtime in tokens, ascending.
    """
    return sorted({*runtimes, *(length for length in _LENGTHS if length < runtimes[-1])})


class ArloMetrics:
    """The metrics `tidal_arlo_*`; the label `runtime` is a runtime's max_length in tokens."""

    def __init__(self, metrics: Metrics, runtimes: Sequence[int]) -> None:
        self._all = metrics
        self.waiting = metrics.gauge("waiting_queries", "Queries in the queue")
        self._length = metrics.histogram(
            "query_length_tokens", "Query lengths, special tokens included", buckets=length_bounds(runtimes)
        )
        self._queue = metrics.histogram("queue_seconds", "Time from arrival to execution")
        self._execute = {
            n: metrics.histogram("execute_seconds", "Engine time of a batch", runtime=str(n)) for n in runtimes
        }
        self._batch = metrics.histogram("batch_size_queries", "Queries run together", buckets=_BATCH_BUCKETS)
        self._distinct = metrics.histogram(
            "batch_distinct_lengths", "Different lengths in a batch", buckets=_DISTINCT_BUCKETS
        )
        self._queries = {n: metrics.counter("executed_queries_total", "Queries run", runtime=str(n)) for n in runtimes}
        self._tokens = metrics.counter("tokens_total", "Tokens of executed queries")
        self._padded = metrics.counter("padded_tokens_total", "Tokens that engines computed, padding included")
        #: Lengths of queries that arrived together, in tokens.
        self.arrived: Deferred[Sequence[int]] = metrics.deferred("arrivals", self._length.observe_all)
        #: Batches that ran.
        self.ran: Deferred[BatchRun] = metrics.deferred("runs", self._record)

    def _record(self, run: BatchRun) -> None:
        self._queue.observe_all(run.waited_s)
        self._execute[run.runtime].observe(run.execute_s)
        self._batch.observe(len(run.lengths))
        self._distinct.observe(len(set(run.lengths)))
        self._queries[run.runtime].inc(len(run.lengths))
        self._tokens.inc(sum(run.lengths))
        self._padded.inc(len(run.lengths) * run.padded)

    def requeue(self, runtime: Runtime, queries: int) -> None:
        """Record queries that were requeued because an instance of the runtime could not run them."""
        self._all.counter(
            "put_back_queries_total",
            "Queries requeued to another instance or a later time",
            runtime=str(runtime.max_length),
        ).inc(queries)


def publish_objective(metrics: Metrics, slo_s: float) -> None:
    """Publish a model's SLO, and add histogram buckets at the shares of it that scaling uses.

    Call this before the histogram of request latencies is created.

    Args:
        metrics: Metrics of the model.
        slo_s: Latency objective, in seconds.
    """
    metrics.gauge("slo_seconds", "Latency objective of all queries").set(slo_s)
    metrics.more_buckets("request_seconds", (IN_BELOW * slo_s, OUT_AT * slo_s))


class PartitionedMetrics:
    """The metrics that only partitioned models have."""

    def __init__(self, metrics: Metrics, runtimes: Sequence[int]) -> None:
        self._instances = [
            metrics.gauge(
                "instances", "Instances of this server that can run queries, also those being removed", runtime=str(n)
            )
            for n in runtimes
        ]
        self._outstanding = [
            metrics.gauge("outstanding_queries", "Queries that wait for a runtime or run on it", runtime=str(n))
            for n in runtimes
        ]
        self._metrics, self._runtimes = metrics, runtimes
        self._remote: set[str] = set()  # nodes whose gauges exist
        self._demoted = metrics.counter("demoted_queries_total", "Dispatches to a longer runtime than needed")
        self._shown = 0  # demotions of the current policy that are counted already

    def update(self, policy: PartitionedPolicy) -> None:
        """Publish the policy's counts."""
        for gauges, values in ((self._instances, policy.instances), (self._outstanding, policy.outstanding)):
            for gauge, value in zip(gauges, values, strict=True):
                gauge.set(value)
        remote = policy.remote
        self._remote.update(remote)
        for node in self._remote:
            self._set_remote(node, remote.get(node, [0] * len(self._runtimes)))
        self._demoted.inc(policy.demotions - self._shown)
        self._shown = policy.demotions

    def clear(self) -> None:
        """Set all gauges to 0, after the service has ended."""
        for gauge in (*self._instances, *self._outstanding):
            gauge.set(0)
        for node in self._remote:
            self._set_remote(node, [0] * len(self._runtimes))

    def _set_remote(self, node: str, instances: Sequence[int]) -> None:
        for runtime, value in zip(self._runtimes, instances, strict=True):
            gauge = self._metrics.gauge(
                "remote_instances", "Instances of another node in use", node=node, runtime=str(runtime)
            )
            gauge.set(value)
