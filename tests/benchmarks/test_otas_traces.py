"""The committed rates of OTAS's live loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.otas.live import traces
from benchmarks.otas.live.rounds import FULL, QUICK
from benchmarks.otas.live.traces import LEAST, LOADS, MEAN, MOST


def test_the_committed_rates_are_those_that_the_command_draws(tmp_path: Path) -> None:
    traces.write(traces.draw(), tmp_path / "traces.json")
    assert (tmp_path / "traces.json").read_text() == traces.FILE.read_text()
    assert traces.read() == traces.draw()


@pytest.mark.parametrize("load", LOADS)
def test_rates_have_the_bounds_and_the_mean_of_their_load(load: float) -> None:
    found = traces.read()
    for trace, seconds in ((found.measured[load], 120), (found.tuning[load], 30)):
        assert len(trace.rates) == seconds
        assert (min(trace.rates), max(trace.rates)) == (pytest.approx(load * LEAST), pytest.approx(load * MOST))
        assert np.mean(trace.rates) == pytest.approx(load * MEAN, abs=1e-4)


def test_no_two_traces_have_the_same_seed_or_shape() -> None:
    found = traces.read()
    drawn = [(load, each) for part in (found.measured, found.tuning) for load, each in part.items()]
    shapes = {tuple(round(rate / load, 2) for rate in each.rates[:30]) for load, each in drawn}
    assert len(shapes) == len({each.seed for _, each in drawn}) == len(drawn) == 2 * len(LOADS)


def test_full_runs_measure_every_trace_as_a_whole() -> None:
    assert (FULL.scales, FULL.seconds) == ((1.0, 1.2, 1.4, 1.6, 1.8), traces.MEASURED_S)
    assert FULL.seconds >= 120
    assert len(QUICK.scales) == 1
    assert set(QUICK.scales) <= set(LOADS)
