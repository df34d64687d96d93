"""Arlo against DT by the cost of dynamic shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cluster.inflation import INFLATIONS, InflationSweep, plot, sweep
from benchmarks.cluster.simulated.figures import FIGURE_6
from benchmarks.cluster.simulated.inputs import BASE, DT_INFLATION, ClusterData
from benchmarks.report import machine


def test_dynamic_shapes_cost_a_multiple_of_the_shortest_runtime_that_fits() -> None:
    times = BASE.inflated(2.0).times
    assert times.dynamic_s is not None
    assert [times.dynamic_s[n] for n in (1, 64, 65, 512)] == pytest.approx(
        [2 * times.static_s[0], 2 * times.static_s[0], 2 * times.static_s[1], 2 * times.static_s[-1]]
    )
    assert BASE.times.dynamic_s == BASE.inflated(DT_INFLATION).times.dynamic_s


def test_the_inflation_of_a_ratio_is_between_the_simulated_ones() -> None:
    found = InflationSweep((1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5), (1.0,) * 7)
    assert found.inflation_for(0.7) == 1.5
    assert found.inflation_for(0.75) == pytest.approx(1.425)
    assert math.isnan(found.inflation_for(0.4))


def test_a_dearer_dt_is_slower(tmp_path: Path) -> None:
    short = replace(FIGURE_6[0], seconds=(5, 5))
    found = sweep(short, ClusterData(None), quick=True)
    assert sorted(found.mean, reverse=True) == list(found.mean)
    assert found.mean[0] > 0.9
    ratios = {short.title: {"mean": found.mean, "p98": found.p98, "paper_mean": 0.763}}
    document = {"machine": machine(), "measured": {"inflations": INFLATIONS, "ratios": ratios}}
    plot(document, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
