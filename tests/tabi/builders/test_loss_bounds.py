"""Bounds of losses against brute force and against new data, alone and for a choice among many candidates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from testing.candidates import candidate
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, ExpectedLoss, Target
from tidal.tabi.selection import select
from tidal_builders.tabi.loss_bounds import accuracy_loss_bound, approximate_loss_bound, resampled_loss_bound

Floats = npt.NDArray[np.float64]


def log_likelihood(gain: float, loss: float, lost: float, gained: float, queries: int) -> float:
    """Of the share `gain` of queries that only the candidate has right, where it loses `loss` in all."""
    shares, counts = (
        np.array([gain + loss, gain, 1 - 2 * gain - loss]),
        np.array([lost, gained, queries - lost - gained]),
    )
    return float(counts @ np.log(np.maximum(shares, 1e-300)))


@pytest.mark.parametrize(("lost", "gained", "queries"), [(12, 3, 200), (30, 20, 1000), (5, 1, 60), (2.5, 6.25, 400)])
def test_the_bound_is_where_the_score_test_rejects(lost: float, gained: float, queries: int) -> None:
    """With the most likely shares under the hypothesis found by search instead of by its formula."""
    bound = accuracy_loss_bound(lost, gained, queries)
    most_likely = minimize_scalar(
        lambda gain: -log_likelihood(gain, bound, lost, gained, queries),
        bounds=(max(0.0, -bound) + 1e-12, (1 - bound) / 2 - 1e-12),
        method="bounded",
        options={"xatol": 1e-12},
    ).x
    error = np.sqrt((2 * most_likely + bound - bound**2) / queries)
    assert (bound - (lost - gained) / queries) / error == pytest.approx(norm.ppf(0.95), abs=1e-3)


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0, 1))
def test_the_bound_is_above_the_loss_and_falls_with_more_queries(queries: int, first: float, second: float) -> None:
    lost, gained = queries * first * second, queries * first * (1 - second)
    bound = accuracy_loss_bound(lost, gained, queries)
    assert (lost - gained) / queries - 1e-9 <= bound <= 1
    assert accuracy_loss_bound(4 * lost, 4 * gained, 4 * queries) <= bound + 1e-9


@pytest.mark.parametrize(("lost", "gained"), [(0.01, 0.0), (0.02, 0.01), (0.05, 0.05), (0.2, 0.1)])
@pytest.mark.parametrize("queries", [300, 1500])
def test_the_bound_of_an_accuracy_covers_the_true_loss(lost: float, gained: float, queries: int) -> None:
    generator = np.random.default_rng(1)
    counts = generator.multinomial(queries, [lost, gained, 1 - lost - gained], size=2000)
    covered = [accuracy_loss_bound(each[0], each[1], queries) >= lost - gained for each in counts]
    assert np.mean(covered) >= 0.935  # 0.95 less the steps of whole numbers and the error of 2,000 draws


@pytest.mark.parametrize(("bound", "repeats"), [(resampled_loss_bound, 100), (approximate_loss_bound, 400)])
def test_the_bound_of_any_loss_covers_the_true_one(
    bound: Callable[[Callable[[Floats], float], int], float], repeats: int
) -> None:
    generator = np.random.default_rng(2)
    covered = []
    for _ in range(repeats):
        truth = generator.normal(size=250)
        one, other = (truth + noise * generator.normal(size=250) for noise in (0.3, 0.5))

        def loss(counts: Floats, truth: Floats = truth, one: Floats = one, other: Floats = other) -> float:
            return float(np.average((other - truth) ** 2 - (one - truth) ** 2, weights=counts))

        covered.append(bound(loss, 250) >= 0.5**2 - 0.3**2)
    assert np.mean(covered) >= 0.9


def test_the_loss_of_a_choice_among_many_candidates_is_within_the_target() -> None:
    """In 95 of 100 cases; the fastest candidate whose measured loss is within it breaks it far more often.

    A large level and 30 candidates, each faster and worse than the one before; their answers differ from the level's on
    shares of the queries that contain each other, as those of a falling cut-off do.
    """
    generator = np.random.default_rng(3)
    target, losses = 0.01, np.linspace(0.0, 0.03, 30)
    changed = losses * 2 + 0.01  # share of the queries answered differently
    broken, naively_broken, faster = [], [], []
    for _ in range(400):
        sides = []
        for queries in (400, 1500):  # calibration and selection part
            place = generator.random(queries)  # a query is answered differently by the candidates beyond its place
            lost = generator.random(queries) < (1 + losses / changed)[:, None] / 2
            differs = place < changed[:, None]
            sides.append(((differs & lost).sum(axis=1), (differs & ~lost).sum(axis=1), queries))
        (order_lost, order_gained, few), (lost_there, gained_there, many) = sides
        order = np.argsort([accuracy_loss_bound(a, b, few) for a, b in zip(order_lost, order_gained, strict=True)])
        candidates: list[Candidate] = [candidate("large", (1,), score=0.9, mean=100)]
        fastest = -1
        for each in order.tolist():
            if each <= fastest:  # the later, the faster
                continue
            fastest = each
            a, b = int(lost_there[each]), int(gained_there[each])
            loss = ExpectedLoss(
                measured=(a - b) / many,
                upper=accuracy_loss_bound(a, b, many),
                place=len(candidates) - 1,
                queries=many,
            )
            candidates.append(candidate(str(each), (0, 1), mean=50 - each, loss=loss))
        naive = [each for each in range(30) if (lost_there[each] - gained_there[each]) / many <= target]
        naively_broken.append(bool(naive) and losses[max(naive)] > target)
        try:
            chosen = candidates[select(candidates, Target(accuracy_loss=target))]
        except InvalidArgument:
            continue
        broken.append(chosen.loss is not None and losses[int(chosen.name)] > target)
        faster.append(chosen.loss is not None)
    assert np.mean(broken) <= 0.06
    assert np.mean(faster) > 0.3
    assert np.mean(naively_broken) > 0.3
