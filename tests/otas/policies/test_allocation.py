"""Algorithms 2 and 3: by hand, against the printed lines, and against every choice."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.otas.policies.allocation import Row, by_arrival_rate, by_dynamic_programme

# γ: merged, as it is, prompts.
QUICK = (0.1, 0.2, 0.4)


class TestDynamicProgramme:
    def test_time_enough_gets_the_most(self) -> None:
        assert by_dynamic_programme(0.0, [1.0, 2.0], [QUICK, QUICK], [(1, 2, 3), (1, 2, 3)]) == [2, 2]

    def test_a_deadline_is_kept_strictly(self) -> None:
        assert by_dynamic_programme(0.0, [0.4], [QUICK], [(1, 2, 3)]) == [1]
        assert by_dynamic_programme(5.0, [5.41], [QUICK], [(1, 2, 3)]) == [2]

    def test_little_time_is_shared(self) -> None:
        # 0.55 s for both: 0.4 + 0.1 earns 3 + 1, 0.2 + 0.2 earns 2 + 2, 0.1 + 0.4 earns 1 + 9.
        assert by_dynamic_programme(0.0, [0.55, 0.55], [QUICK, QUICK], [(1, 2, 3), (1, 2, 9)]) == [0, 2]

    def test_a_batch_is_left_out_for_a_better_one(self) -> None:
        assert by_dynamic_programme(0.0, [0.15, 0.19], [QUICK, QUICK], [(1, 2, 3), (5, 6, 7)]) == [None, 0]

    def test_what_is_not_executed_in_front_is_not_executed(self) -> None:
        # As printed, S starts as 1 and no comparison of zeros changes it: the first two would run at index 1.
        deadlines = [0.05, 0.06, 0.5]
        assert by_dynamic_programme(0.0, deadlines, [QUICK] * 3, [(1, 2, 3)] * 3) == [None, None, 2]

    def test_a_batch_that_earns_nothing_takes_its_time_all_the_same(self) -> None:
        # As printed, its state would keep the clock T, and the second batch seem to be in time behind it.
        assert by_dynamic_programme(0.0, [0.5, 0.45], [QUICK, QUICK], [(0, 0, 0), (1, 2, 3)]) == [None, 2]

    def test_nothing_that_waits_and_nothing_that_can_run(self) -> None:
        assert by_dynamic_programme(0.0, [], [], []) == []
        assert by_dynamic_programme(1.0, [0.5], [QUICK], [(1, 2, 3)]) == [None]
        assert by_dynamic_programme(0.0, [9.0], [(0.1, math.inf, math.inf)], [(1, 2, 3)]) == [0]

    def test_one_clock_a_state_loses_the_best(self) -> None:
        """What the published programme cannot see: less utility that is there much sooner.

        Behind the first two, the state "the second at the last γ" keeps the way of the most utility, 3 + 3 at 0.8 s;
        then the third is too late. Behind the way of 1 + 3, which is there at 0.5 s, it would earn its 4.
        """
        deadlines, seconds = [0.45, 0.85, 0.95], [QUICK, (9, 9, 0.4), (9, 9, 0.4)]
        utilities = [(1, 2, 3), (0, 0, 3), (0, 0, 4)]
        found = by_dynamic_programme(0.0, deadlines, seconds, utilities)
        assert earned(0.0, deadlines, seconds, utilities, found) == 7
        assert best(0.0, deadlines, seconds, utilities) == 8


def earned(
    now: float, deadlines: list[float], seconds: list[Row], utilities: list[Row], places: tuple[int | None, ...] | list
) -> float:
    """Utility of an allocation, -∞ where a batch would be late."""
    total = 0.0
    for deadline, takes, earns, gamma_index in zip(deadlines, seconds, utilities, places, strict=True):
        if gamma_index is not None:
            now += takes[gamma_index]
            total += earns[gamma_index] if now < deadline else -math.inf
    return total


def best(now: float, deadlines: list[float], seconds: list[Row], utilities: list[Row]) -> float:
    choices = itertools.product((None, 0, 1, 2), repeat=len(deadlines))
    return max(earned(now, deadlines, seconds, utilities, choice) for choice in choices)


def printed(now: float, deadlines: list[float], seconds: list[Row], utilities: list[Row]) -> list[int | None]:
    """Lines 5 to 38 of Algorithm 2 one by one, with the repairs that the module names."""
    number, gammas = len(deadlines), len(seconds[0])
    dp = [[0.0] + [-math.inf] * gammas for _ in range(number + 1)]
    chosen = [[0] * (gammas + 1) for _ in range(number + 1)]
    clock = [[now] * (gammas + 1) for _ in range(number + 1)]
    for b in range(1, number + 1):
        dp[b][0] = -math.inf
        for index in range(gammas + 1):
            for before in range(gammas + 1):
                if dp[b - 1][before] == -math.inf:
                    continue
                if index == 0:
                    if dp[b - 1][before] > dp[b][index]:
                        dp[b][index] = dp[b - 1][before]
                        chosen[b][index] = before
                        clock[b][index] = clock[b - 1][before]
                else:
                    takes = seconds[b - 1][index - 1]
                    if clock[b - 1][before] + takes < deadlines[b - 1]:
                        utility = dp[b - 1][before] + utilities[b - 1][index - 1]
                        if utility > dp[b][index]:
                            dp[b][index] = utility
                            chosen[b][index] = before
                            clock[b][index] = clock[b - 1][before] + takes
    index = dp[number].index(max(dp[number]))
    places: list[int | None] = []
    for b in range(number, 0, -1):
        places.append(index - 1 if index else None)
        index = chosen[b][index]
    return places[::-1]


SECONDS = st.tuples(*[st.integers(1, 9)] * 3)
UTILITIES = st.tuples(*[st.integers(0, 9)] * 3)
BATCHES = st.lists(st.tuples(st.integers(1, 30), SECONDS, UTILITIES), min_size=1, max_size=5)


@given(BATCHES)
@settings(max_examples=150, deadline=None)
def test_it_is_the_printed_programme_and_never_better_than_the_best(batches: list[tuple[int, Row, Row]]) -> None:
    batches.sort(key=lambda batch: batch[0])
    deadlines, seconds, utilities = ([batch[i] for batch in batches] for i in range(3))
    found = by_dynamic_programme(0.0, deadlines, seconds, utilities)  # type: ignore[arg-type]
    assert found == printed(0.0, deadlines, seconds, utilities)  # type: ignore[arg-type]
    most = best(0.0, deadlines, seconds, utilities)  # type: ignore[arg-type]
    assert earned(0.0, deadlines, seconds, utilities, found) <= most  # type: ignore[arg-type]


class TestArrivalRate:
    def places(self, *batches: tuple[float, float], gamma_index: int = 1, seconds: Row = QUICK) -> list[int]:
        """Batches are deadlines and mean utilities."""
        deadlines, utilities = zip(*batches, strict=True)
        return by_arrival_rate(0.0, deadlines, [seconds] * len(batches), utilities, gamma_index)

    def test_the_rate_decides(self) -> None:
        assert self.places((1.0, 0.5), (2.0, 0.5), gamma_index=1) == [1, 1]

    def test_one_that_would_be_late_gets_the_fewest_tokens(self) -> None:
        assert self.places((0.2, 0.5), (2.0, 0.5)) == [0, 1]  # T + t ≥ d is late

    def test_it_does_so_even_where_it_is_critical(self) -> None:
        assert self.places((0.15, 1.0)) == [0]

    def test_a_critical_one_gets_the_most(self) -> None:
        assert self.places((1.0, 0.8), (2.0, 0.81)) == [1, 2]

    def test_time_passes(self) -> None:
        assert self.places((1.0, 0.9), (0.55, 0.5)) == [2, 0]

    def test_memory_bounds_the_most(self) -> None:
        assert self.places((1.0, 0.9), seconds=(0.1, 0.2, math.inf)) == [1]
        assert self.places((1.0, 0.5), seconds=(0.1, math.inf, math.inf)) == [0]


def test_ties_keep_the_first_that_was_found() -> None:
    assert by_dynamic_programme(0.0, [1.0], [QUICK], [(2, 2, 2)]) == [0]
    assert by_dynamic_programme(0.0, [1.0], [QUICK], [(0, 0, 0)]) == [None]


@pytest.mark.parametrize("number", [1, 4])
def test_earlier_batches_may_hold_any_number_of_gammas(number: int) -> None:
    rows = [tuple([0.1] * number)] * 2
    assert by_dynamic_programme(0.0, [1.0, 1.0], rows, [tuple(range(1, number + 1))] * 2) == [number - 1] * 2
