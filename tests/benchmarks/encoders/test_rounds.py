"""Settings of peers, and rounds of the benchmark of encoders: their order, and how they resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.encoders import cells, claims, systems
from benchmarks.encoders.__main__ import FULL, QUICK
from benchmarks.encoders.agreement import References, agreement, cosines
from benchmarks.encoders.cells import Case, measure_closed, measure_open
from benchmarks.encoders.claims import CLAIMED
from benchmarks.encoders.load import LoadResult
from benchmarks.encoders.prepare import EncoderArtefacts
from benchmarks.encoders.rounds import EncoderRounds
from benchmarks.encoders.run import EncoderRun
from benchmarks.encoders.search import best_of
from benchmarks.encoders.source import TASKS
from benchmarks.encoders.systems import FASTAPI, FASTEMBED, PEERS, RAY, TIDAL, TIDAL_GRPC
from benchmarks.encoders.workload import Traffic, Workload
from tests.benchmarks.encoders.support import FakeSide


@pytest.fixture(autouse=True)
def _counts_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of batches of these sides need not be published first."""
    monkeypatch.setattr(cells, "_PUBLISHED_S", 0.0)


def test_a_measurement_has_the_share_of_the_cores_and_the_mean_batch() -> None:
    for cell in (
        measure_closed(FakeSide(), [["a"]], in_flight=1, seconds=1.0, warm_s=0.0),
        measure_open(FakeSide(), [["a"]], np.zeros(1)),
    ):
        assert (cell.per_second, cell.mean_ms, cell.p50_ms, cell.mean_batch, cell.failed) == (30, 2, 2, 4, 1)
        assert 0 < cell.utilisation <= 1 / len(os.sched_getaffinity(0))
        assert cell.client == pytest.approx(cell.utilisation / 20)


def test_a_closed_loop_is_lengthened_to_eight_answers_for_each_request_in_flight() -> None:
    side = FakeSide()
    measure_closed(side, [["a"]], in_flight=32, seconds=1.0, warm_s=0.0)
    assert side.least == 256


def test_a_measurement_without_answers_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no request was answered: failed"):
        measure_closed(FakeSide(()), [["a"]], in_flight=1, seconds=1.0, warm_s=0.0)


def test_agreement_is_the_worst_over_all_rows() -> None:
    assert cosines(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 0.0], [1.0, 0.0]])).tolist() == pytest.approx(
        [1.0, 0.5**0.5]
    )
    requests: dict[Any, Any] = {"embed": [["ab"]], "rerank": [["a", "abc"], ["ab"]]}
    values: dict[Any, Any] = {"embed": [np.array([[7.0]])], "rerank": [np.array([[1.0], [2.5]]), np.array([[2.0]])]}
    references = References(requests, values)
    assert agreement(FakeSide(), references, "embed") == 1.0
    assert agreement(FakeSide(), references, "rerank") == 0.5


@pytest.mark.parametrize("system", [*PEERS, FASTEMBED])
def test_settings_differ_and_use_all_cores(system: str) -> None:
    found = systems.forms(system, quick=False)
    assert len({json.dumps(each.settings) for each in found}) == len({each.label for each in found}) == len(found)
    assert systems.forms(system, quick=True) == found[:1]
    cores = len(os.sched_getaffinity(0))
    for form in found:
        assert int(form.settings["threads"]) * int(form.settings.get("workers", 1)) == cores


def test_the_fastest_settings_are_chosen_for_each_concurrency() -> None:
    assert best_of({0: {1: 10, 32: 20}, 1: {1: 9, 32: 40}, 2: {1: 8, 32: 30}}) == [0, 1]


def test_claimed_cases_are_measured_for_at_least_five_rounds() -> None:
    assert FULL.rounds >= 5
    names = {case.name for task in TASKS for case in FULL.cases(task)}
    assert {Case(CLAIMED[task], count).name for task in TASKS for count in (1, 8, 32, 64)} <= names
    assert {Case(CLAIMED["embed"], share=share).name for share in (0.4, 0.7, 0.9)} <= names
    assert {case.name for task in TASKS for case in QUICK.cases(task)} <= names
    assert {FULL.peers[task] for task in TASKS} == {(*PEERS, FASTEMBED)}


class _Rounds(EncoderRounds):
    """Rounds whose systems are made up, and record their order and the seconds of each warm-up."""

    order: list[str]
    warmed: list[float]

    @contextmanager
    def _running(self, task: Any) -> Iterator[Any]:
        object.__setattr__(self, "order", [])
        object.__setattr__(self, "warmed", [])

        def named(name: str) -> Any:
            side = FakeSide()
            closed = side.closed

            def recorded(payloads: Any, **given: Any) -> LoadResult:
                self.order.append(name)
                self.warmed.append(given["warm_s"])
                return closed(payloads, **given)

            side.closed = recorded  # type: ignore[method-assign]
            return side, side

        yield {name: named(name) for name in (TIDAL, TIDAL_GRPC, FASTAPI, RAY, FASTEMBED)}


def test_rounds_alternate_and_resume(tmp_path: Path, workload: Workload) -> None:
    run = EncoderRun(
        tmp_path / "run.json",
        forms={"embed": {FASTAPI: [{}, {}], RAY: [{}, {}], FASTEMBED: [{}, {}]}},
        speeds={"embed": {FASTAPI: 20.0, RAY: 15.0, FASTEMBED: 90.0}},
    )
    cases = [Case(Traffic("embed", "tweets"), 1), Case(Traffic("embed", "tweets"), share=0.9)]
    bench = _Rounds(EncoderArtefacts(tmp_path), run, workload, rounds=2, seconds=0.1)
    assert bench.systems(cases[0]) == [TIDAL, TIDAL_GRPC, FASTAPI, RAY, FASTEMBED]
    assert bench.systems(cases[1]) == [TIDAL, TIDAL_GRPC, FASTAPI]  # Ray Serve cannot keep up, FastEmbed serves nothing
    bench.measure("embed", cases[:1])
    assert bench.order == [TIDAL, TIDAL_GRPC, FASTAPI, RAY, FASTEMBED, TIDAL_GRPC, FASTAPI, RAY, FASTEMBED, TIDAL]
    assert min(bench.warmed) == max(bench.warmed) >= 0.5  # every system, each time
    resumed = EncoderRun.open(run.file)
    assert resumed.cells == run.cells
    assert {system: len(cells) for system, cells in resumed.cells[cases[0].name].items()} == dict.fromkeys(
        (TIDAL, TIDAL_GRPC, FASTAPI, RAY, FASTEMBED), 2
    )
    del resumed.cells[cases[0].name][RAY][1]
    again = _Rounds(EncoderArtefacts(tmp_path), resumed, workload, rounds=2, seconds=0.1)
    again.measure("embed", cases[:1])
    assert again.order == [RAY]


def test_a_peer_that_fails_is_left_out_and_a_failure_of_tidal_ends_the_run(tmp_path: Path, workload: Workload) -> None:
    run = EncoderRun(tmp_path / "run.json", forms={"embed": {FASTAPI: [{}, {}]}}, speeds={"embed": {FASTAPI: 9.0}})
    failing: dict[str, bool] = {FASTAPI: True}

    class Failing(EncoderRounds):
        @contextmanager
        def _running(self, task: Any) -> Iterator[Any]:
            def side(name: str) -> Any:
                return (FakeSide(() if failing.get(name) else (1.0,)),) * 2

            yield {name: side(name) for name in (TIDAL, TIDAL_GRPC, FASTAPI)}

    bench = Failing(EncoderArtefacts(tmp_path), run, workload, rounds=2, seconds=0.1)
    case = Case(Traffic("embed", "tweets"), 8)
    bench.measure("embed", [case])
    assert "no request was answered" in run.missing["embed"][FASTAPI]
    assert {system: len(cells) for system, cells in run.cells[case.name].items()} == {
        TIDAL: 2,
        TIDAL_GRPC: 2,
        FASTAPI: 0,
    }
    assert claims.make_claims(run) == []
    failing[TIDAL] = True
    with pytest.raises(RuntimeError, match="tidal failed"):
        bench.measure("embed", [Case(Traffic("embed", "tweets"), 32)])
