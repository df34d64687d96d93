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


def test_deferred_observations_are_read_with_the_samples() -> None:
    metrics = Metrics("arlo")
    counter = metrics.counter("words_total", "")
    deferred = metrics.deferred("words", counter.inc)
    deferred.add(2)
    deferred.add(3)
    assert counter.value == 0
    assert [sample.value for sample in metrics.samples()] == [5]
    assert [sample.value for sample in metrics.samples()] == [5]
    assert metrics.deferred("words", counter.inc) is deferred
    assert metrics.within("level", level="1").deferred("words", counter.inc) is not deferred


def test_deferred_observations_are_recorded_once_by_any_number_of_threads() -> None:
    metrics = Metrics("arlo")
    seen = metrics.histogram("seen", "", buckets=(10.0,))
    deferred = metrics.deferred("seen", seen.observe)

    def work() -> None:
        for _ in range(3000):
            deferred.add(1.0)
            if len(deferred) > 100:
                deferred.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deferred.flush()
    assert (seen.sum, len(deferred)) == (12000.0, 0)


def test_deferred_observations_are_bounded() -> None:
    metrics = Metrics("arlo")
    counter = metrics.counter("words_total", "")
    deferred = metrics.deferred("words", counter.inc)
    for _ in range(10_000):
        deferred.add(1)
        assert len(deferred) < 4096
    assert counter.value + len(deferred) == 10_000
