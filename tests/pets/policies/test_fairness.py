"""Long queries are not delayed in favour of short ones: the scheduler on a virtual clock, with MiniLM's profile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pets.fairness import MIXTURES, Closed, Open, mixed, simulate, uniform
from tests.pets.policies.costs import TABLES
from tidal.pets.policies import PetsBatch, PetsScheduler
from tidal.pets.policies.lanes import LaneView

pytestmark = pytest.mark.slow


class CheapestFirst(PetsScheduler):
    """Runs the planned batch with the fewest seconds per query, which starves long ones."""

    def _choose(self, plan: Sequence[PetsBatch], now: float, view: LaneView) -> tuple[int | None, PetsBatch]:
        place = min(range(len(plan)), key=lambda place: plan[place].seconds / len(plan[place].queries))
        return place, plan[place]


_CASES = [*itertools.product(MIXTURES, [Closed(8), Closed(64)]), ("mostly short", Open(0.95))]


@pytest.mark.parametrize(("mixture", "load"), _CASES, ids=str)
def test_long_queries_wait_at_most_twice_as_long_as_short_ones(mixture: str, load: Closed | Open) -> None:
    found = simulate(PetsScheduler(TABLES), TABLES, MIXTURES[mixture], load, 700)
    assert found.holds, found
    assert found.overtaken == 0


@st.composite
def any_mixture(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int], float]:
    """Two ranges of lengths in tokens, the longer one second, and its share of the queries."""
    bounds = sorted(draw(st.lists(st.integers(4, 64), min_size=4, max_size=4)))
    return (bounds[0], bounds[1]), (bounds[2], bounds[3]), draw(st.sampled_from((0.02, 0.05, 0.3, 0.7, 0.95)))


@given(mixture=any_mixture(), load=st.builds(Closed, st.integers(2, 96)))
@settings(max_examples=4, deadline=None, derandomize=True)
def test_any_mixture_is_served_fairly(mixture: tuple[tuple[int, int], tuple[int, int], float], load: Closed) -> None:
    short, long, share = mixture
    found = simulate(PetsScheduler(TABLES), TABLES, mixed(uniform(*short), uniform(*long), share), load, 1200)
    assert found.holds, found
    assert found.overtaken == 0


@pytest.mark.parametrize("mixture", MIXTURES)
def test_fairness_costs_no_throughput(mixture: str) -> None:
    fair = simulate(PetsScheduler(TABLES), TABLES, MIXTURES[mixture], Closed(32), 700)
    cheapest = simulate(CheapestFirst(TABLES), TABLES, MIXTURES[mixture], Closed(32), 700)
    assert not cheapest.holds  # the tests above detect it
    assert cheapest.overtaken > 100
    assert fair.per_second > cheapest.per_second
