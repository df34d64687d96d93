"""Inequality 1 and its crossover against what can be worked out, recent arrivals, and who gets a merged copy."""

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
    """One query of each of four tasks: 4·(10 + 1) apart against 10 + 4·1 + 4·2 together."""
    tables = linear(10, 1, 2)
    pool = Pool.of(tables, [(str(task), "a", 8) for task in range(4)])
    assert saved_by_sharing(pool, tables) == pytest.approx((44 - 22) / 1e3)
    alone = pool.take(np.array([0]))
    assert saved_by_sharing(alone, tables) == pytest.approx(-2 / 1e3)
    # Where the copies keep their terms, sharing saves what the passes cost.
    assert saved_by_sharing(pool, tables, unmergeable=["a"]) == pytest.approx(30 / 1e3)
    assert saved_by_sharing(alone, tables, unmergeable=["a"]) == pytest.approx(0)


@given(fixed=st.integers(1, 40), each=st.integers(1, 9), terms=st.integers(1, 9), queries=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_the_crossover_is_where_what_passes_cost_outweighs_the_terms(
    fixed: int, each: int, terms: int, queries: int
) -> None:
    """T·(a + b·n) > a + (b + c)·n·T exactly from T > a / (a - c·n) on, and never where the terms cost more."""
    assume(fixed % max(1, fixed - terms * queries))  # both equally fast at some number of tasks: rounding decides
    found = crossover(linear(fixed, each, terms), ["a"], queries=queries, length=8, most_tasks=16)
    if fixed <= terms * queries:
        assert found is None
        return
    first = math.floor(fixed / (fixed - terms * queries)) + 1
    assert found == (first if first <= 16 else None)


def test_the_crossover_needs_all_larger_numbers() -> None:
    """A pass of two is cheap, one of three dear: two tasks gain, three do not."""
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

    def test_what_is_over_counts_half_and_is_forgotten(self) -> None:
        arrivals = Arrivals(half_life_s=2.0)
        arrivals.note("A", "a", 8, 0.0)
        (load,) = arrivals.loads(0.0)
        (later,) = arrivals.loads(2.0)
        assert later.per_s == pytest.approx(load.per_s / 2)
        assert later.length == pytest.approx(8)
        assert arrivals.loads(40.0) == []
        assert not arrivals._found


class TestChoice:
    # A pass costs 2 ms and 0.1 a query, the terms 0.5 a query.
    TABLES = linear(2, 0.1, 0.5)
    RULE = MergeRule(max_copies=2, enter=0.1, leave=0.05)

    def chosen(self, *per_s: float, current: str = "", rule: MergeRule = RULE, tables: Tables = TABLES) -> str:
        loads = [TaskLoad(task, "a", rate, 8.0) for task, rate in zip("ABCDEFGH", per_s, strict=False)]
        return "".join(sorted(choose_copies(loads, current, tables, rule)))

    def test_a_hot_task_gets_one_and_those_with_few_queries_share(self) -> None:
        # Some 40 queries in a pass, 32 of them of A: its terms take 16 ms, a pass of its own 2.
        assert self.chosen(1600, 100, 100, 100, 100) == "A"

    def test_none_for_terms_that_no_weights_can_hold(self) -> None:
        assert self.chosen(1600, 100, rule=dataclasses.replace(self.RULE, unmergeable=frozenset("a"))) == ""

    def test_none_where_sharing_saves_more(self) -> None:
        assert self.chosen(*[250] * 8, tables=linear(20, 0.1, 0.5)) == ""

    def test_memory_bounds_them(self) -> None:
        rates = (900, 800, 700)
        assert self.chosen(*rates) == "AB"
        assert self.chosen(*rates, rule=MergeRule(1, 0.1, 0.05)) == "A"
        assert self.chosen(*rates, rule=MergeRule(0, 0.1, 0.05)) == ""

    def test_an_idle_server_needs_none(self) -> None:
        assert self.chosen(0.5) == ""
        assert choose_copies([], ["A"], self.TABLES, self.RULE) == frozenset()

    def test_one_that_is_there_stays_until_it_saves_little(self) -> None:
        # Alone, A saves its terms: 0.5 ms of each query's time between arrivals.
        assert self.chosen(150) == ""  # 7.5 %
        assert self.chosen(150, current="A") == "A"
        assert self.chosen(90, current="A") == ""  # 4.5 %
        assert self.chosen(210) == "A"

    def test_a_newcomer_replaces_one_only_where_it_saves_much_more(self) -> None:
        rule = MergeRule(1, 0.1, 0.05)
        assert self.chosen(600, 700, rule=rule) == "B"
        assert self.chosen(600, 700, current="A", rule=rule) == "A"
        assert self.chosen(100, 1300, current="A", rule=rule) == "B"

    def test_one_that_is_left_alone_shares_with_nobody(self) -> None:
        # B's terms are 7 % of the time, but a pass of its own 5 %, until A has left it alone.
        assert self.chosen(1600, 160, rule=MergeRule(2, 0.05, 0.02)) == "AB"
        assert self.chosen(1600, 160, rule=MergeRule(1, 0.05, 0.02)) == "A"

    def test_it_is_stable(self) -> None:
        """Fed its own choice at a constant load, it does not change its mind."""
        for rates in ((150, 150, 150), (900, 880, 860), (400, 10, 10), (1600, 100, 100)):
            chosen = self.chosen(*rates)
            assert self.chosen(*rates, current=chosen) == chosen
