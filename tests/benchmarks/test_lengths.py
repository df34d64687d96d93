"""Ladders that the automatic lengths are compared with, and what a query runs as."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lengths.__main__ import _add
from benchmarks.lengths.measure import cell_of, searched_ladders
from benchmarks.lengths.plot import AUTO
from benchmarks.lengths.workload import LONGEST, NAMES, LengthsWorkload
from benchmarks.report import Report
from tidal_builders.arlo.ladder import Ladder
from tidal_builders.arlo.length_distribution import LengthDistribution


@pytest.mark.parametrize(
    ("length", "cell"), [(1, (16, False)), (16, (16, False)), (17, (64, False)), (64, (64, False)), (65, (65, True))]
)
def test_a_query_runs_at_the_next_static_length_or_at_its_own(length: int, cell: tuple[int, bool]) -> None:
    assert cell_of(Ladder(lengths=(16, 64, 512), static_upto=64), length) == cell


def test_compared_ladders_serve_every_length() -> None:
    ladders = searched_ladders(LengthDistribution.short(LONGEST))
    assert ladders["dynamic"].form == "dynamic"
    for name, ladder in ladders.items():
        assert ladder.lengths[-1] == LONGEST, name
        assert list(ladder.lengths) == sorted(set(ladder.lengths)), name
    assert ladders["8 even"].lengths == (64, 128, 192, 256, 320, 384, 448, 512)
    assert ladders["8 shares of the texts"].lengths[0] <= 24


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_reproducible_and_within_the_limit(name: str) -> None:
    workload = LengthsWorkload(Path("unused"), None)
    found = workload.lengths(name, 500, seed=3)
    assert found == workload.lengths(name, 500, seed=3)
    assert min(found) >= 1
    assert max(found) <= LONGEST


def test_the_claim_is_the_ratio_to_the_best_other_choice() -> None:
    report = Report("lengths", quick=True)
    _add(report, "tweets", "mixed", {AUTO: [1.0, 1.2, 1.1], "a": [2.0, 2.0, 2.0], "b": [1.0, 1.0, 1.0]}, "[8, 512]")
    (claim,) = report.claims
    assert (claim.name, claim.measured, claim.holds) == ("auto_vs_best_choice[tweets]", pytest.approx(1.1), False)
    assert claim.note == "mixed; best: b"
