"""Algorithms 2 and 3 of the OTAS paper: by hand, against the printed lines, and against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.otas.policies.allocation import Row, by_arrival_rate, by_dynamic_programme

# Seconds at each γ: with merging, unchanged, with prompts.
QUICK = (0.1, 0.2, 0.4)


class TestDynamicProgramme:
    def test_with_enough_time_the_largest_gamma_is_chosen(self) -> None:
        assert by_dynamic_programme(0.0, [1.0, 2.0], [QUICK, QUICK], [(1, 2, 3), (1, 2, 3)]) == [2, 2]

    def test_a_batch_must_end_before_its_deadline(self) -> None:
        assert by_dynamic_programme(0.0, [0.4], [QUICK], [(1, 2, 3)]) == [1]
        assert by_dynamic_programme(5.0, [5.41], [QUICK], [(1, 2, 3)]) == [2]

    def test_scarce_time_goes_to_the_highest_total_utility(self) -> None:
        # 0.55 s for both: 0.4 + 0.1 earns 3 + 1, 0.2 + 0.2 earns 2 + 2, 0.1 + 0.4 earns 1 + 9.
        assert by_dynamic_programme(0.0, [0.55, 0.55], [QUICK, QUICK], [(1, 2, 3), (1, 2, 9)]) == [0, 2]

    def test_a_batch_is_skipped_for_one_of_higher_utility(self) -> None:
        assert by_dynamic_programme(0.0, [0.15, 0.19], [QUICK, QUICK], [(1, 2, 3), (5, 6, 7)]) == [None, 0]

    def test_skipped_batches_at_the_front_are_not_executed(self) -> None:
        # As printed, S starts as 1 and no comparison of zeros changes it: the first two would run at index 1.
        deadlines = [0.05, 0.06, 0.5]
        assert by_dynamic_programme(0.0, deadlines, [QUICK] * 3, [(1, 2, 3)] * 3) == [None, None, 2]

    def test_a_batch_without_utility_still_takes_time(self) -> None:
        # As printed, its state would keep the clock T, and the second batch would seem to be in time after it.
        assert by_dynamic_programme(0.0, [0.5, 0.45], [QUICK, QUICK], [(0, 0, 0), (1, 2, 3)]) == [None, 2]

    def test_no_batches_and_no_feasible_batch(self) -> None:
        assert by_dynamic_programme(0.0, [], [], []) == []
        assert by_dynamic_programme(1.0, [0.5], [QUICK], [(1, 2, 3)]) == [None]
        assert by_dynamic_programme(0.0, [9.0], [(0.1, math.inf, math.inf)], [(1, 2, 3)]) == [0]

    def test_one_clock_per_state_misses_the_optimum(self) -> None:
        """The published programme misses plans of less utility that end much sooner.

        After the first two batches, the state "the second at the last γ" keeps the path of the most utility, 3 + 3 at
        0.8 s; then the third is too late. After the path of 1 + 3, which ends at 0.5 s, it would earn its 4.
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
def test_it_equals_the_printed_programme_and_never_exceeds_brute_force(batches: list[tuple[int, Row, Row]]) -> None:
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

    def test_the_arrival_rate_decides(self) -> None:
        assert self.places((1.0, 0.5), (2.0, 0.5), gamma_index=1) == [1, 1]

    def test_a_late_batch_gets_the_smallest_gamma(self) -> None:
        assert self.places((0.2, 0.5), (2.0, 0.5)) == [0, 1]  # T + t ≥ d is late

    def test_a_late_batch_gets_the_smallest_gamma_even_if_critical(self) -> None:
        assert self.places((0.15, 1.0)) == [0]

    def test_a_critical_batch_gets_the_largest_gamma(self) -> None:
        assert self.places((1.0, 0.8), (2.0, 0.81)) == [1, 2]

    def test_earlier_batches_delay_later_ones(self) -> None:
        assert self.places((1.0, 0.9), (0.55, 0.5)) == [2, 0]

    def test_memory_limits_the_largest_gamma(self) -> None:
        assert self.places((1.0, 0.9), seconds=(0.1, 0.2, math.inf)) == [1]
        assert self.places((1.0, 0.5), seconds=(0.1, math.inf, math.inf)) == [0]


def test_ties_keep_the_first_choice() -> None:
    assert by_dynamic_programme(0.0, [1.0], [QUICK], [(2, 2, 2)]) == [0]
    assert by_dynamic_programme(0.0, [1.0], [QUICK], [(0, 0, 0)]) == [None]


@pytest.mark.parametrize("number", [1, 4])
def test_any_number_of_gammas_is_accepted(number: int) -> None:
    rows = [tuple([0.1] * number)] * 2
    assert by_dynamic_programme(0.0, [1.0, 1.0], rows, [tuple(range(1, number + 1))] * 2) == [number - 1] * 2
