from __future__ import annotations

import threading

from tidal.metrics import Metrics


def values(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.family, s.labels): s.value for s in metrics.samples()}


def test_families_have_the_systems_prefix_and_are_created_once() -> None:
    metrics = Metrics("arlo")
    metrics.counter("queries_total", "Queries", runtime="64").inc()
    metrics.counter("queries_total", "Queries", runtime="64").inc(2)
    metrics.gauge("waiting", "Waiting").set(5)
    assert values(metrics) == {
        ("tidal_arlo_queries_total", (("runtime", "64"),)): 3.0,
        ("tidal_arlo_waiting", ()): 5.0,
    }


def test_histogram_buckets_are_cumulative_and_include_their_bound() -> None:
    metrics = Metrics("arlo")
    histogram = metrics.histogram("length_tokens", "Lengths", buckets=(8, 16))
    for value in (1, 8, 9, 16, 17, 1000):
        histogram.observe(value)
    got = values(metrics)
    assert got[("tidal_arlo_length_tokens_bucket", (("le", "8"),))] == 2
    assert got[("tidal_arlo_length_tokens_bucket", (("le", "16"),))] == 4
    assert got[("tidal_arlo_length_tokens_bucket", (("le", "+Inf"),))] == 6
    assert got[("tidal_arlo_length_tokens_count", ())] == 6
    assert got[("tidal_arlo_length_tokens_sum", ())] == 1051


def test_no_count_is_lost_between_threads() -> None:
    metrics = Metrics("arlo")
    counter, histogram = metrics.counter("n_total", "N"), metrics.histogram("s", "S", buckets=(1,))

    def work() -> None:
        for _ in range(5000):
            counter.inc()
            histogram.observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 20_000
    assert histogram.cumulative() == ([("1", 20_000), ("+Inf", 20_000)], 20_000, 10_000.0)
