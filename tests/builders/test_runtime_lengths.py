"""Lengths of runtimes: by brute force, on staircases, and for the expected lengths."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.models import make_tiny_classifier
from tidal.errors import InvalidArgument
from tidal_builders.arlo.length_distribution import LengthDistribution, lengths_of_texts
from tidal_builders.arlo.runtime_lengths import MAX_RUNTIMES, optimal_lengths, static_part

GRID = list(range(8, 513, 8))
EVEN = [1 / len(GRID)] * len(GRID)


def staircase(step: int, slope: float = 0.0) -> np.ndarray:
    """Latency that rises by 1 at every multiple of `step`, and by `slope` a step's width within it."""
    lengths = np.asarray(GRID)
    return 1 + (lengths - 1) // step + slope * ((lengths - 1) % step) / step


def mean_latency(chosen: list[int], grid: list[int], latencies: list[float], shares: list[float]) -> float:
    """Mean latency when each query is padded to the next chosen length."""
    of = dict(zip(grid, latencies, strict=True))
    return sum(
        share * of[min(each for each in chosen if each >= length)] for length, share in zip(grid, shares, strict=True)
    )


@st.composite
def curves(draw: st.DrawFn) -> tuple[list[int], list[float], list[float]]:
    count = draw(st.integers(1, 7))
    latencies = draw(st.lists(st.floats(0.01, 100), min_size=count, max_size=count))
    weights = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    total = sum(weights) or 1
    return [8 * (i + 1) for i in range(count)], latencies, [weight / total for weight in weights]


@given(curves(), st.integers(1, 4))
def test_the_mean_is_within_1_percent_of_the_best_with_the_fewest_runtimes(
    curve: tuple[list[int], list[float], list[float]], most: int
) -> None:
    grid, latencies, shares = curve
    found = optimal_lengths(grid, latencies, shares, most)
    best: dict[int, float] = {}
    for count in range(min(most, len(grid))):
        best[count + 1] = min(
            mean_latency([*others, grid[-1]], grid, latencies, shares)
            for others in itertools.combinations(grid[:-1], count)
        )
    limit = 1.01 * min(best.values())
    assert found == sorted(set(found))
    assert found[-1] == grid[-1]
    assert mean_latency(found, grid, latencies, shares) == pytest.approx(best[len(found)])
    assert best[len(found)] <= limit + 1e-12
    assert all(best[fewer] > limit - 1e-12 for fewer in range(1, len(found)))


@given(curves(), st.data(), st.integers(1, 4))
def test_the_static_part_is_the_best_beside_a_dynamic_runtime(
    curve: tuple[list[int], list[float], list[float]], data: st.DataObject, most: int
) -> None:
    grid, static, shares = curve
    dynamic = data.draw(st.lists(st.floats(0.01, 100), min_size=len(grid), max_size=len(grid)))
    found = static_part(grid, static, dynamic, shares, most)

    def mean(chosen: list[int]) -> float:
        last = grid.index(chosen[-1]) + 1 if chosen else 0
        own = mean_latency(chosen, grid[:last], static[:last], shares[:last]) if chosen else 0.0
        return own + sum(share * each for share, each in zip(shares[last:], dynamic[last:], strict=True))

    best = {
        count: min(mean(list(chosen)) for chosen in itertools.combinations(grid, count))
        for count in range(min(most, len(grid)) + 1)
    }
    limit = 1.01 * min(best.values())
    assert found == sorted(set(found))
    assert mean(found) == pytest.approx(best[len(found)])
    assert best[len(found)] <= limit + 1e-12
    assert all(best[fewer] > limit - 1e-12 for fewer in range(len(found)))


def test_static_runtimes_are_for_the_lengths_where_they_gain() -> None:
    """Dynamic shapes cost 0.4 ms here, which matters for short inputs; there are not enough runtimes for the long."""
    static = [0.5 + length / 16 for length in GRID]
    dynamic = [each + 0.4 for each in static]
    shares = LengthDistribution.short(512).within(GRID).tolist()
    found = static_part(GRID, static, dynamic, shares)
    assert found
    assert found[-1] < 128
    assert static_part(GRID, dynamic, static, shares) == []


@pytest.mark.parametrize("step", [64, 128])
@pytest.mark.parametrize("seed", range(5))
def test_ends_of_steps_are_found_in_noise_and_with_a_slope(step: int, seed: int) -> None:
    """Arlo's observation: within a step latency changes by less than 5 %."""
    curve = staircase(step, slope=0.1)
    noisy = curve + np.random.default_rng(seed).normal(0, 0.01 * curve.mean(), len(curve))
    found = optimal_lengths(GRID, noisy.tolist(), EVEN)
    ends = list(range(step, 513, step))
    assert len(found) <= MAX_RUNTIMES
    assert mean_latency(found, GRID, curve.tolist(), EVEN) <= 1.03 * mean_latency(ends, GRID, curve.tolist(), EVEN)


def test_uneven_steps_are_found() -> None:
    assert optimal_lengths(GRID, [1.0 if n <= 48 else 1.8 if n <= 200 else 3.5 for n in GRID], EVEN) == [48, 200, 512]


def test_short_texts_get_short_runtimes() -> None:
    """On a straight line an even distribution gets even lengths, and that of messages gets lengths of messages."""
    latencies = [0.5 + length / 64 for length in GRID]
    even = optimal_lengths(GRID, latencies, EVEN)
    short = optimal_lengths(GRID, latencies, LengthDistribution.short(512).within(GRID).tolist())
    assert even == list(range(64, 513, 64))
    assert short[0] <= 16
    assert max(short[:-1]) <= 128


def test_a_flat_curve_needs_one_runtime() -> None:
    assert optimal_lengths(GRID, [3.0] * len(GRID), EVEN) == [512]


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3, 2 and 3"):
        optimal_lengths([8, 16, 24], [1.0, 2.0], [0.2, 0.4, 0.4])


class TestDistribution:
    @pytest.mark.parametrize("max_length", [1, 2, 40, 128, 512])
    @pytest.mark.parametrize("name", ["short", "even"])
    def test_shares_sum_to_1(self, name: str, max_length: int) -> None:
        found: LengthDistribution = getattr(LengthDistribution, name)(max_length)
        assert found.shares.shape == (max_length,)
        assert found.shares.min() >= 0
        assert found.shares.sum() == pytest.approx(1)
        grid = sorted({max(1, max_length // 2), max_length})
        assert found.within(grid).sum() == pytest.approx(1)

    def test_short_texts_have_the_percentiles_of_tweets(self) -> None:
        below = LengthDistribution.short(512).shares.cumsum()
        assert [round(below[length - 1], 6) for length in (9, 24, 50, 71, 128)] == [0.05, 0.5, 0.95, 0.99, 1.0]

    def test_known_lengths_are_counted_and_long_ones_cut(self) -> None:
        found = LengthDistribution.of_lengths([2, 2, 3, 900], 4)
        assert found.shares.tolist() == [0, 0.5, 0.25, 0.25]
        assert found.within([3, 4]).tolist() == [0.75, 0.25]

    def test_drawn_lengths_follow_the_distribution(self) -> None:
        assert LengthDistribution.of_lengths([5] * 9 + [40], 40).spread(10) == [5] * 9 + [40]
        even = LengthDistribution.even(120).spread(12)
        assert [(length - 1) // 10 for length in even] == list(range(12))

    def test_few_lengths_divide_the_texts_and_the_range(self) -> None:
        short = LengthDistribution.short(512)
        assert short.grid(8) == GRID
        few = short.grid(8, 16)
        assert len(few) <= 16
        assert set(range(64, 513, 64)) <= set(few) <= set(GRID)
        assert {16, 24, 32, 48} <= set(few)
        assert LengthDistribution.even(30).grid(8, 16) == [8, 16, 24, 30]

    def test_texts_of_a_file_are_tokenised(self, tmp_path: Path) -> None:
        tokenizer = make_tiny_classifier(tmp_path / "model") / "tokenizer.json"
        texts = tmp_path / "texts.txt"
        texts.write_text("good\n\nthe food was good\n")
        one, four = lengths_of_texts(texts, "samples", tokenizer, pairs=False)
        assert (one, four) == (3, 6)
        # As the second text of a pair each has its tokens and one separator.
        assert lengths_of_texts(texts, "samples", tokenizer, pairs=True) == [8, 8]
        texts.write_text(" \n")
        with pytest.raises(InvalidArgument, match=r"field 'lengths_like': .*contains no text"):
            lengths_of_texts(texts, "lengths_like", tokenizer, pairs=False)
