"""Inequality 1 and its crossover against closed forms, arrival rates, and which tasks get a merged copy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.pets.policies.costs import make_profile
from tidal.pets.policies import Pool
from tidal.pets.policies.merging import Arrivals, MergeRule, TaskLoad, choose_copies, crossover, saved_by_sharing
from tidal.pets.profile import Tables


def linear(fixed: float, each: float, terms: float, most: int = 64) -> Tables:
    """α = fixed + each · N and β = terms · n."""
    return make_profile(
        lambda length, n: fixed + each * n, {"a": lambda length, n: terms * n}, longest=8, most=most
    ).tables()


def test_inequality_1() -> None:
    """One query for each of four tasks: 4·(10 + 1) separately against 10 + 4·1 + 4·2 together."""
    tables = linear(10, 1, 2)
    pool = Pool.of(tables, [(str(task), "a", 8) for task in range(4)])
    assert saved_by_sharing(pool, tables) == pytest.approx((44 - 22) / 1e3)
    alone = pool.take(np.array([0]))
    assert saved_by_sharing(alone, tables) == pytest.approx(-2 / 1e3)
    # If the copies keep their terms, sharing saves the cost of the passes.
    assert saved_by_sharing(pool, tables, unmergeable=["a"]) == pytest.approx(30 / 1e3)
    assert saved_by_sharing(alone, tables, unmergeable=["a"]) == pytest.approx(0)


@given(fixed=st.integers(1, 40), each=st.integers(1, 9), terms=st.integers(1, 9), queries=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_the_crossover_is_where_passes_cost_more_than_terms(fixed: int, each: int, terms: int, queries: int) -> None:
    """T·(a + b·n) > a + (b + c)·n·T exactly if T > a / (a - c·n), and never if the terms cost more."""
    assume(fixed % max(1, fixed - terms * queries))  # equal at some number of tasks: rounding decides
    found = crossover(linear(fixed, each, terms), ["a"], queries=queries, length=8, most_tasks=16)
    if fixed <= terms * queries:
        assert found is None
        return
    first = math.floor(fixed / (fixed - terms * queries)) + 1
    assert found == (first if first <= 16 else None)


def test_the_crossover_holds_for_all_larger_numbers_of_tasks() -> None:
    """A pass of two is cheap, one of three is expensive: two tasks gain, three do not."""
    shared = {1: 10.0, 2: 11.0, 3: 40.0, 4: 40.0}
    tables = make_profile(lambda length, n: shared[n], {"a": lambda length, n: 4.0 * n}, longest=8, most=4).tables()
    assert saved_by_sharing(Pool.of(tables, [("A", "a", 8), ("B", "a", 8)]), tables) > 0
    assert saved_by_sharing(Pool.of(tables, [("A", "a", 8), ("B", "a", 8), ("C", "a", 8)]), tables) < 0
    assert crossover(tables, ["a"], queries=1, length=8, most_tasks=2) == 2
    assert crossover(tables, ["a"], queries=1, length=8, most_tasks=3) is None


class TestArrivals:
    def test_a_steady_stream_has_its_rate(self) -> None:
        arrivals = Arrivals(half_life_s=10.0)
        for number in range(10_000):
            arrivals.note("A", "a", 10 + number % 2, number * 0.01)
            if number % 4 == 0:
                arrivals.note("B", "b", 30, number * 0.01)
        busy, calm = arrivals.loads(100.0)
        assert (busy.task, busy.kind, calm.task, calm.kind) == ("A", "a", "B", "b")
        assert busy.per_s == pytest.approx(100, rel=0.01)
        assert calm.per_s == pytest.approx(25, rel=0.01)
        assert (busy.length, calm.length) == (pytest.approx(10.5, rel=0.01), pytest.approx(30))

    def test_rates_halve_after_a_half_life_and_are_finally_dropped(self) -> None:
        arrivals = Arrivals(half_life_s=2.0)
        arrivals.note("A", "a", 8, 0.0)
        (load,) = arrivals.loads(0.0)
        (later,) = arrivals.loads(2.0)
        assert later.per_s == pytest.approx(load.per_s / 2)
        assert later.length == pytest.approx(8)
        assert arrivals.loads(40.0) == []
        assert not arrivals._found


class TestChoice:
    # A pass costs 2 ms and 0.1 ms per query, the terms 0.5 ms per query.
    TABLES = linear(2, 0.1, 0.5)
    RULE = MergeRule(max_copies=2, enter=0.1, leave=0.05)

    def chosen(self, *per_s: float, current: str = "", rule: MergeRule = RULE, tables: Tables = TABLES) -> str:
        loads = [TaskLoad(task, "a", rate, 8.0) for task, rate in zip("ABCDEFGH", per_s, strict=False)]
        return "".join(sorted(choose_copies(loads, current, tables, rule)))

    def test_a_hot_task_gets_a_copy_and_tasks_with_few_queries_share(self) -> None:
        # About 40 queries per pass, 32 of them for A: its terms take 16 ms, a separate pass 2 ms.
        assert self.chosen(1600, 100, 100, 100, 100) == "A"

    def test_no_copy_for_terms_that_cannot_be_merged(self) -> None:
        assert self.chosen(1600, 100, rule=dataclasses.replace(self.RULE, unmergeable=frozenset("a"))) == ""

    def test_no_copy_if_sharing_saves_more(self) -> None:
        assert self.chosen(*[250] * 8, tables=linear(20, 0.1, 0.5)) == ""

    def test_the_number_of_copies_is_limited(self) -> None:
        rates = (900, 800, 700)
        assert self.chosen(*rates) == "AB"
        assert self.chosen(*rates, rule=MergeRule(1, 0.1, 0.05)) == "A"
        assert self.chosen(*rates, rule=MergeRule(0, 0.1, 0.05)) == ""

    def test_no_copies_on_an_idle_server(self) -> None:
        assert self.chosen(0.5) == ""
        assert choose_copies([], ["A"], self.TABLES, self.RULE) == frozenset()

    def test_a_copy_is_kept_until_it_saves_little(self) -> None:
        # Alone, A saves its terms: 0.5 ms of each query's time between arrivals.
        assert self.chosen(150) == ""  # 7.5 %
        assert self.chosen(150, current="A") == "A"
        assert self.chosen(90, current="A") == ""  # 4.5 %
        assert self.chosen(210) == "A"

    def test_a_copy_is_replaced_only_by_one_that_saves_much_more(self) -> None:
        rule = MergeRule(1, 0.1, 0.05)
        assert self.chosen(600, 700, rule=rule) == "B"
        assert self.chosen(600, 700, current="A", rule=rule) == "A"
        assert self.chosen(100, 1300, current="A", rule=rule) == "B"

    def test_a_task_left_alone_on_the_shared_model_gets_a_copy_too(self) -> None:
        # B's terms take 7 % of the time and a separate pass 5 %; once A has a copy, B has the shared model for itself.
        assert self.chosen(1600, 160, rule=MergeRule(2, 0.05, 0.02)) == "AB"
        assert self.chosen(1600, 160, rule=MergeRule(1, 0.05, 0.02)) == "A"

    def test_the_choice_is_stable(self) -> None:
        """At a constant load, its own choice as the current one is chosen again."""
        for rates in ((150, 150, 150), (900, 880, 860), (400, 10, 10), (1600, 100, 100)):
            chosen = self.chosen(*rates)
            assert self.chosen(*rates, current=chosen) == chosen
