"""The order of OTAS's live measurements, and what an interruption loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.otas.live import tables
from benchmarks.otas.live.load import OtasLoad
from benchmarks.otas.live.outcome import OtasOutcome
from benchmarks.otas.live.rounds import OtasRounds, OtasRun, OtasSize
from benchmarks.otas.live.systems import PETS, SYSTEMS, TOME, VPT
from benchmarks.otas.live.traces import LiveTraces, LoadTrace
from benchmarks.report import Report
from tests.benchmarks.otas_control import FakeControl
from tests.benchmarks.otas_runs import TASKS, TYPES, an_outcome

LOADS = (1.0, 1.2)
RATES = LiveTraces(
    {load: LoadTrace(0, (load,) * 8) for load in LOADS}, {load: LoadTrace(1, (2 * load,) * 4) for load in LOADS}
)
SIZE = OtasSize(rounds=2, seconds=4, capacity_s=1.0, scales=LOADS, searched=True)


class FakeBench:
    """Answers at once; of the γ above 0 γ 2 earns most, but at a load of 1.2 γ 4."""

    def __init__(self, most: int = 1000) -> None:
        self.server = SimpleNamespace(control=FakeControl())
        self.calls: list[tuple[str, int, int]] = []
        self._most = most

    def called(self, name: str, gamma: int, queries: int) -> None:
        if len(self.calls) == self._most:
            raise KeyboardInterrupt
        self.calls.append((name, gamma, queries))

    def capacity(self, model: str, like: OtasLoad, *, roughly: float, seconds: float) -> float:
        self.called(f"capacity of {model}", 0, 0)
        return {"size_small": 300.0, "size_large": 30.0}.get(model, 100.0)

    def measure_model(self, model: str, load: OtasLoad) -> OtasOutcome:
        self.called(model, 0, len(load))
        return an_outcome({"fixed_2": 5.0, "fixed_4": 6.0 if len(load) > 880 else 4.0}.get(model, 3.0))

    def measure(self, system: str, load: OtasLoad, *, gamma: int, throughputs: tuple[float, ...]) -> OtasOutcome:
        assert throughputs == (300.0, 100.0, 30.0)
        self.called(system, gamma, len(load))
        return an_outcome(1.0, gamma)

    def of(self, *names: str) -> list[tuple[str, int, int]]:
        return [call for call in self.calls if call[0] in names]


def rounds(bench: FakeBench, kept: Path, size: OtasSize = SIZE) -> OtasRounds:
    return OtasRounds(bench, TYPES, TASKS, (-4, 0, 2, 4), size, 100.0, kept, RATES)  # type: ignore[arg-type]


def test_every_system_gets_the_same_queries_of_a_load_and_in_another_order(tmp_path: Path) -> None:
    bench = FakeBench()
    run = rounds(bench, tmp_path / "kept.json").run()
    measured = bench.of(*SYSTEMS)
    cells = [measured[begin : begin + 7] for begin in range(0, 28, 7)]
    assert len(measured) == 28
    for cell in cells:
        assert {system for system, _, _ in cell} == set(SYSTEMS)
        assert len({queries for _, _, queries in cell}) == 1
    orders = [[system for system, _, _ in cell] for cell in cells]
    assert len({order[0] for order in orders}) == 4
    assert orders[0].index(PETS) < orders[0].index(TOME)
    assert orders[1].index(PETS) > orders[1].index(TOME)
    assert cells[0][0][2] == pytest.approx(400, abs=60)  # the first four seconds of the trace
    assert cells[1][0][2] == pytest.approx(480, abs=66)
    assert cells[0][0][2] != cells[2][0][2]  # other arrivals in the next round
    gammas = [{system: gamma for system, gamma, _ in cell} for cell in cells[:2]]
    assert [(each[TOME], each[VPT], each[PETS]) for each in gammas] == [(-4, 2, 0), (-4, 4, 0)]
    assert run == OtasRun.read(tmp_path / "kept.json")
    # γ 0 is measured for the tuning, and before every load.
    assert len(bench.of("capacity of fixed_0")) == 5
    assert bench.calls.index(("capacity of fixed_0", 0, 0)) == 3


def test_fixed_gammas_are_chosen_on_other_traces(tmp_path: Path) -> None:
    bench = FakeBench()
    rounds(bench, tmp_path / "kept.json").run()
    tuned = bench.of("fixed_minus_4", "fixed_2", "fixed_4")
    assert [model for model, _, _ in tuned] == ["fixed_minus_4"] * 2 + ["fixed_2"] * 2 + ["fixed_4"] * 2
    assert tuned[0][2] == pytest.approx(800, abs=85)  # four seconds of twice the rate
    assert tuned[1][2] > tuned[0][2]


def test_what_is_not_searched_is_nearest_to_0(tmp_path: Path) -> None:
    bench, size = FakeBench(), replace(SIZE, searched=False)
    run = rounds(bench, tmp_path / "kept.json", size).run()
    assert {(system, gamma) for system, gamma, _ in bench.of(TOME, VPT)} == {(TOME, -4), (VPT, 2)}
    assert bench.of("fixed_minus_4", "fixed_2", "fixed_4") == []
    assert run == OtasRun.read(tmp_path / "kept.json")
    report = Report("otas", True)
    tables.add_tuning(report, run, size.scales)
    (table,) = report.tables
    assert {cell for column in table.columns[1:] for cell in column.cells} == {"not searched"}


@pytest.mark.parametrize("most", [4, 5, 9, 10, 12, 17, 18, 25, 30])
def test_an_interruption_loses_one_measurement_at_most(tmp_path: Path, most: int) -> None:
    whole, first, second = FakeBench(), FakeBench(most), FakeBench()
    result = rounds(whole, tmp_path / "whole.json").run()
    with pytest.raises(KeyboardInterrupt):
        rounds(first, tmp_path / "kept.json").run()
    assert rounds(second, tmp_path / "kept.json").run() == result
    assert first.calls + second.calls == whole.calls
