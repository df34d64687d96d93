"""Counts from two readings of /metrics, also when counters were reset between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.pages import page
from tidal.controller.counts import ModelCounts
from tidal.controller.reports import since
from tidal.controller.series import counts_of, parse_series, slo_of

LENGTHS = (16, 32, 64)
SLO_S = 0.123456789


def read(page: str, versions: tuple[int, ...] = (1,)) -> ModelCounts:
    return counts_of(parse_series(page), "m", versions, LENGTHS, SLO_S)


def between(before: str, now: str) -> ModelCounts:
    return since(read(before), read(now))


def test_counts_of_an_interval() -> None:
    before = page(slo_s=SLO_S, lengths={16: 5, 32: 7, 64: 9}, latencies_s=[0.01, 0.2], busy_s={16: 1.0, 64: 2.0})
    now = page(
        slo_s=SLO_S,
        lengths={16: 15, 32: 8, 64: 9},
        latencies_s=[0.01, 0.2, 0.01, 0.07, 0.13],
        busy_s={16: 1.5, 64: 2.0},
    )
    counts = between(before, now)
    assert counts.queries == (10, 1, 0)
    assert counts.busy_s == pytest.approx((0.5, 0, 0))
    assert (counts.requests, counts.slow, counts.critical) == (3, 2, 1)
    assert counts.mean_latency_s == pytest.approx(0.07)


def test_reset_counters_never_count_backwards() -> None:
    before = page(slo_s=SLO_S, lengths={16: 500, 32: 1, 64: 9}, latencies_s=[0.01] * 50)
    now = page(slo_s=SLO_S, lengths={16: 3, 32: 2, 64: 1}, latencies_s=[0.01, 0.2])
    counts = between(before, now)
    assert counts.queries == (0, 1, 0)
    assert (counts.requests, counts.slow, counts.critical) == (0, 1, 1)


def test_all_loaded_versions_count() -> None:
    old = page(slo_s=SLO_S, lengths={16: 50, 32: 0, 64: 0}, version=1)
    new = page(slo_s=SLO_S, lengths={16: 0, 32: 4, 64: 0}, version=2)
    assert read(old + new, (2,)).queries == (0, 4, 0)
    assert read(old + new, (1, 2)).queries == (50, 4, 0)


def test_other_models_and_families_are_left_out() -> None:
    mine = page(slo_s=SLO_S, lengths={16: 1, 32: 1, 64: 1})
    other = page(slo_s=SLO_S, lengths={16: 9, 32: 9, 64: 9}, model="n", latencies_s=[1.0])
    noise = 'nv_inference_count{model="m",version="1"} 5\n# HELP x y\nnonsense without a value\n'
    assert between("", noise + mine + other).queries == (1, 1, 1)
    assert between("", noise + mine + other).requests == 0


def test_an_empty_page_has_no_counts() -> None:
    assert between("", "") == ModelCounts.none(3)
    assert ModelCounts.none(3).mean_latency_s is None


def test_the_slo_is_read_by_version() -> None:
    series = parse_series(page(slo_s=0.5, version=1) + page(slo_s=0.25, version=2))
    assert slo_of(series, "m", 2) == 0.25
    assert slo_of(series, "m", 3) is None
    assert slo_of(series, "n", 2) is None


def test_inconsistent_buckets_give_no_negative_counts() -> None:
    text = page(slo_s=SLO_S, lengths={16: 5, 32: 0, 64: 0}).replace('le="32"} 5', 'le="32"} 3')
    counts = between("", text)
    assert min(counts.queries) >= 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
def test_counts_add_up(parts: list[tuple[int, int]]) -> None:
    total = ModelCounts.none(1)
    for queries, requests in parts:
        total += ModelCounts(1.0, (float(queries),), (0.5,), requests, requests // 2, requests // 4, 0.1 * requests)
    assert total.seconds == len(parts)
    assert total.queries == (sum(q for q, _ in parts),)
    assert total.requests == sum(r for _, r in parts)
    assert total.slow == sum(r // 2 for _, r in parts)
