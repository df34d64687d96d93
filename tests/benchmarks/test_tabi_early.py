"""The comparison of the early router with Tabi's confidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import Report
from benchmarks.tabi.early_routing import RoutedQueries, add_comparison, collect_routes
from benchmarks.tabi.tasks import TaskQueries
from tests.benchmarks.test_tabi import ToyLevel, candidate, manifest
from tests.tabi.builders.toy import Toy, tokenizer_of


def queries(difficulty: list[float], rerouted: list[float], small: list[int], large: list[int]) -> RoutedQueries:
    count = len(difficulty)
    arrays = (np.array(each, np.float64) for each in (difficulty, rerouted, small, large, large))
    return RoutedQueries(*arrays, np.full(count, 1.0), np.full(count, 4.0), 0.1)


def test_ways_are_charged_what_they_run() -> None:
    found = queries([0.9, 0.8, 0.1, 0.2], [1.0, 0.5, 0.0, 0.0], [0, 0, 1, 1], [1, 1, 1, 0])
    tabi = found.routed("", None, dispatcher=True)
    assert (tabi.accuracy, tabi.escalated, tabi.skipped) == (pytest.approx(3.5 / 4), pytest.approx(1.5 / 4), 0)
    assert tabi.mean_ms == pytest.approx(1 + 4 * 1.5 / 4)
    router = found.routed("", 0.5, dispatcher=False)
    assert (router.accuracy, router.escalated, router.skipped) == (1.0, 0.5, 0.5)
    assert router.mean_ms == pytest.approx((1 + 1 + 4 + 4) / 4 + 0.1)
    both = found.routed("", 0.85, dispatcher=True)
    assert (both.escalated, both.skipped) == (pytest.approx(1.5 / 4), 0.25)
    assert both.mean_ms == pytest.approx((4 + (1 + 2) + 1 + 1) / 4 + 0.1)


def test_the_cheapest_way_at_the_same_accuracy_is_taken() -> None:
    found = queries([0.9, 0.8, 0.1, 0.2], [1.0, 0.5, 0.0, 0.0], [0, 0, 1, 1], [1, 1, 1, 0]).compared()
    assert [each.name for each in found] == [
        "Tabi's confidence", "early router alone", "early router, then Tabi's confidence",
    ]  # fmt: skip
    assert (found[1].accuracy, found[1].skipped) == (1.0, 0.5)
    assert all(each.accuracy >= found[0].accuracy for each in found)
    report = Report("tabi", True)
    add_comparison(report, {"sst2": found})
    assert next(iter(report.tables[0].columns[6].cells)) == "1.00"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_every_way_is_as_accurate_as_tabi_and_no_more_than_both_levels(
    rows: list[tuple[float, float, bool, bool]],
) -> None:
    found = queries(*(list(column) for column in zip(*rows, strict=True))).compared()  # type: ignore[arg-type]
    for each in found:
        assert each.accuracy >= found[0].accuracy - 1e-6
        assert 0 <= each.skipped <= each.escalated + 1e-9 <= 1 + 1e-6
        assert each.mean_ms <= 1 + 4 + 0.1 + 1e-9
    # Tabi with a router that skips nothing costs the router's time more.
    assert found[-1].mean_ms <= found[0].mean_ms + 0.1 + 1e-9


def test_the_router_is_fitted_on_other_queries(tmp_path: Path) -> None:
    toy = Toy(noise=(1.0, 0.1), base_ms=(1.0, 5.0), classes=2)
    data = toy.data(120)
    tokenizer = tokenizer_of(tmp_path)
    asked: list[tuple[int, str]] = []
    levels = [ToyLevel(toy, place, tokenizer, asked) for place in (0, 1)]
    known, new = (
        TaskQueries(data.texts[rows], tuple("ab"[number] for number in data.truth[rows]))
        for rows in (slice(60), slice(60, 120))
    )
    found = collect_routes(manifest(), candidate((0, 1), 0.9, 2.0), levels, known, new)  # type: ignore[arg-type]
    assert {text for level, text in asked if level == 1} <= {texts[0] for texts in new.texts}
    small = toy.outputs(0, new.texts).logits.argmax(axis=1)
    assert found.small_right.tolist() == (small == data.truth[60:]).astype(float).tolist()
    assert len(found.difficulty) == 60
