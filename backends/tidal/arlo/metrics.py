"""Metrics of the `arlo` backend."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.scheduling.scaling import IN_BELOW, OUT_AT
from tidal.engine_model.manifest import Runtime
from tidal.metrics import Metrics

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
_DISTINCT_BUCKETS = (1, 3, 7, 15, 31)


class ArloMetrics:
    """The metrics `tidal_arlo_*`; the label `runtime` is a runtime's max_length in tokens."""

    def __init__(self, metrics: Metrics, runtimes: Sequence[int]) -> None:
        self._all = metrics
        self.waiting = metrics.gauge("waiting_queries", "Queries in the queue")
        self._length = metrics.histogram(
            "query_length_tokens", "Query lengths, special tokens included", buckets=runtimes
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

    def length(self, tokens: int) -> None:
        """Record the length of a query that arrived."""
        self._length.observe(tokens)

    def ran(
        self, runtime: Runtime, lengths: Sequence[int], padded: int, waited_s: Sequence[float], execute_s: float
    ) -> None:
        """Record a batch that ran.

        Args:
            runtime: Runtime that ran it.
            lengths: Length of each query in tokens.
            padded: Length that the queries were padded to.
            waited_s: Time from arrival to execution of each query, in seconds.
            execute_s: Time of the engine, in seconds.
        """
        for seconds in waited_s:
            self._queue.observe(seconds)
        self._execute[runtime.max_length].observe(execute_s)
        self._batch.observe(len(lengths))
        self._distinct.observe(len(set(lengths)))
        self._queries[runtime.max_length].inc(len(lengths))
        self._tokens.inc(sum(lengths))
        self._padded.inc(len(lengths) * padded)

    def requeue(self, runtime: Runtime, queries: int) -> None:
        """Record queries that were requeued because an instance of the runtime could not run them."""
        self._all.counter(
            "put_back_queries_total", "Queries tried again elsewhere or later", runtime=str(runtime.max_length)
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
            metrics.gauge("instances", "Instances that may run something, leaving ones included", runtime=str(n))
            for n in runtimes
        ]
        self._outstanding = [
            metrics.gauge("outstanding_queries", "Queries that wait for a runtime or run on it", runtime=str(n))
            for n in runtimes
        ]
        self._demoted = metrics.counter("demoted_queries_total", "Dispatches to a longer runtime than needed")
        self._shown = 0  # demotions of the current policy that are counted already

    def update(self, policy: PartitionedPolicy) -> None:
        """Publish the policy's counts."""
        for gauges, values in ((self._instances, policy.instances), (self._outstanding, policy.outstanding)):
            for gauge, value in zip(gauges, values, strict=True):
                gauge.set(value)
        self._demoted.inc(policy.demotions - self._shown)
        self._shown = policy.demotions

    def clear(self) -> None:
        """Set all gauges to 0, after the service has ended."""
        for gauge in (*self._instances, *self._outstanding):
            gauge.set(0)
