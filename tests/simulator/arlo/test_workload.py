"""Synthetic workloads: rates, bursts, lengths and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidal.errors import InvalidArgument
from tidal.simulator.arlo import Bursts, SyntheticRequests, length_history, scaled_lengths


def all_of(workload: SyntheticRequests) -> tuple[Any, Any]:
    seconds = list(workload)
    return np.concatenate([s.times for s in seconds]), np.concatenate([s.lengths for s in seconds])


def fano(times: Any, window: float, until: float) -> float:
    """Return the variance over the mean of the arrivals per window: 1 for a Poisson process."""
    counts, _ = np.histogram(times, np.arange(0.0, until + 1e-9, window))
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize("bursts", [None, Bursts()])
def test_times_ascend_within_their_second_and_rates_follow_the_trace(bursts: Bursts | None) -> None:
    rates = [2000.0, 500.0, 0.0, 4000.0] * 25
    workload = SyntheticRequests(rates, [10], [1], bursts=bursts, seed=3)
    counts = np.zeros(4)
    for i, second in enumerate(workload):
        assert second.start == i
        assert (np.diff(second.times) >= 0).all()
        assert len(second.times) == len(second.lengths)
        if len(second.times):
            assert i <= second.times[0]
            assert second.times[-1] <= i + 1
        counts[i % 4] += len(second.times) / 25
    assert counts == pytest.approx(np.array(rates[:4]), rel=0.15 if bursts else 0.02)
    assert counts[2] == 0
    assert workload.mean_rate == pytest.approx(1625)


def test_stable_is_poisson_and_bursty_is_not() -> None:
    stable, _ = all_of(SyntheticRequests([1000.0] * 200, [10], [1]))
    bursty, _ = all_of(SyntheticRequests([1000.0] * 200, [10], [1], bursts=Bursts(2.0, 0.2, 0.2)))
    assert fano(stable, 0.1, 200) == pytest.approx(1, abs=0.15)
    assert fano(bursty, 0.1, 200) > 5
    # The share of time in bursts: rates are 2 times the mean in bursts and 0.75 times between them.
    counts, _ = np.histogram(bursty, np.arange(0.0, 200.01, 0.05))
    assert np.mean(counts > 70) == pytest.approx(0.2, abs=0.05)
    assert len(bursty) == pytest.approx(200_000, rel=0.04)


def test_equal_seeds_give_equal_requests_and_others_do_not() -> None:
    def make(seed: int) -> SyntheticRequests:
        return SyntheticRequests([300.0] * 5, [10, 20, 30], [1, 1, 1], bursts=Bursts(), drift=0.3, seed=seed)

    for one, other in zip(all_of(make(1)), all_of(make(1)), strict=True):
        np.testing.assert_array_equal(one, other)
    workload = make(1)
    np.testing.assert_array_equal(all_of(workload)[0], all_of(workload)[0])
    assert not np.array_equal(all_of(make(1))[0][:100], all_of(make(2))[0][:100])


def test_lengths_follow_the_weights_and_are_truncated() -> None:
    _, lengths = all_of(SyntheticRequests([5000.0] * 10, [10, 20, 900], [1, 2, 1]))
    counts = np.bincount(lengths, minlength=513) / len(lengths)
    assert counts[[10, 20, 512]] == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
    workload = SyntheticRequests([5000.0] * 10, [10, 20, 900], [1, 2, 1])
    everything, beginning = length_history(workload), length_history(workload, 2.5)
    assert everything.by_length == {n: int((lengths == n).sum()) for n in (10, 20, 512)}
    assert (everything.seconds, beginning.seconds) == (10.0, 3.0)
    first = [len(second.times) for second in workload][:3]
    assert sum(beginning.by_length.values()) == sum(first)


def test_lengths_drift_over_minutes_and_not_within_seconds() -> None:
    workload = SyntheticRequests([1.0] * 40_000, [100], [1], drift=0.3, drift_s=100.0)
    logs = np.log(workload.scales)
    assert logs.std() == pytest.approx(0.3, rel=0.2)
    assert logs.mean() == pytest.approx(0, abs=0.1)
    correlation = [float(np.corrcoef(logs[:-lag], logs[lag:])[0, 1]) for lag in (1, 100, 1000)]
    assert correlation == pytest.approx([0.99, np.exp(-1), 0.0], abs=0.15)
    assert (SyntheticRequests([1.0] * 10, [100], [1]).scales == 1).all()


def test_tweets_scaled_to_512() -> None:
    assert scaled_lengths([1, 21, 125], 125, 512) == [5, 87, 512]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rates": []}, "rates must be one or more"),
        ({"rates": [-1.0]}, "requests per second of at least 0"),
        ({"rates": [float("nan")]}, "rates must be"),
        ({"lengths": [], "weights": []}, "lengths must be one or more"),
        ({"lengths": [0]}, "of at least 1, each with a weight"),
        ({"weights": [1, 2]}, "each with a weight"),
        ({"weights": [0]}, "their sum above 0"),
        ({"longest": 0}, "longest must be at least 1 token, got 0"),
        ({"drift": -0.1}, "drift must be at least 0"),
        ({"drift_s": 0.0}, "drift_s must be a positive"),
    ],
)
def test_bad_workloads_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SyntheticRequests(**{"rates": [1.0], "lengths": [10], "weights": [1.0], **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 1.0}, "burst share must be between 0 and 1"),
        ({"factor": 6.0}, "burst factor must be between 1 and 1 / share = 5, got 6"),
        ({"mean_s": 0.0}, "mean duration of a burst must be a positive"),
    ],
)
def test_bad_bursts_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Bursts(**{"factor": 2.0, "mean_s": 0.2, "share": 0.2, **change})
