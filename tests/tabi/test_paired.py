"""The bound of a loss of accuracy: published intervals, the definition, and its coverage by all counts of a sample."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import multinomial, norm, poisson

from tidal.tabi import paired
from tidal.tabi.paired import queries_needed, upper_loss

Floats = npt.NDArray[np.float64]
Bound = Callable[[float, float, float], float]


@pytest.fixture
def uncorrected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "_CORRECTION", 0.0)


@pytest.mark.parametrize(
    ("first", "second", "count", "published"),
    [
        # Airway hyper-responsiveness (Bentur et al., 2009) and complete response (Cavo et al., 2012), in Fagerland,
        # Lydersen and Laake, Statistical Analysis of Contingency Tables (2017), chapter 8.
        (1, 7, 21, (-0.517, -0.026)),
        (6, 16, 161, (-0.1240, -0.0054)),
    ],
)
@pytest.mark.usefixtures("uncorrected")
def test_without_correction_and_with_two_sides_it_is_the_published_interval(
    monkeypatch: pytest.MonkeyPatch, first: int, second: int, count: int, published: tuple[float, float]
) -> None:
    monkeypatch.setattr(paired, "_QUANTILE", norm.ppf(0.975))
    found = -upper_loss(second, first, count), upper_loss(first, second, count)
    assert found == pytest.approx(published, abs=5e-4 if count < 100 else 5e-5)


def log_likelihood(gain: float, loss: float, lost: float, gained: float, queries: int) -> float:
    """Of the share `gain` of queries that only the candidate has right, where it loses `loss` in all."""
    shares = np.array([gain + loss, gain, 1 - 2 * gain - loss])
    counts = np.array([lost, gained, queries - lost - gained])
    return float(counts @ np.log(np.maximum(shares, 1e-300)))


@pytest.mark.parametrize(
    ("lost", "gained", "queries"), [(12, 3, 200), (30, 20, 1000), (5, 1, 60), (2.5, 6.25, 400), (1, 0, 5000)]
)
def test_the_bound_is_where_the_corrected_score_test_rejects(lost: float, gained: float, queries: int) -> None:
    """With the most likely shares under the hypothesis found by search instead of by its formula."""
    bound = upper_loss(lost, gained, queries)
    most_likely = minimize_scalar(
        lambda gain: -log_likelihood(gain, bound, lost, gained, queries),
        bounds=(max(0.0, -bound) + 1e-12, (1 - bound) / 2 - 1e-12),
        method="bounded",
        options={"xatol": 1e-12},
    ).x
    error = np.sqrt((2 * most_likely + bound - bound**2) / queries)
    assert (bound - (lost - gained + 0.5) / queries) / error == pytest.approx(norm.ppf(0.95), abs=2e-3)


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0, 1))
def test_the_bound_is_above_the_loss_and_falls_with_more_queries(queries: int, first: float, second: float) -> None:
    lost, gained = queries * first * second, queries * first * (1 - second)
    bound = upper_loss(lost, gained, queries)
    assert (lost - gained) / queries - 1e-9 <= bound <= 1
    assert upper_loss(4 * lost, 4 * gained, 4 * queries) <= bound + 1e-9


def wald(lost: float, gained: float, queries: float) -> float:
    """The bound by the standard error of the measured difference."""
    loss = (lost - gained) / queries
    return loss + float(norm.ppf(0.95)) * math.sqrt(max((lost + gained) / queries - loss**2, 0) / queries)


# Counts beyond this have a probability below 1e-9 for up to 24 expected ones.
COUNTS = 60
EXPECTED_LOST = (0.5, 1.0, 1.8, 2.7, 2.9, 3.5, 4.5, 6.0, 7.4, 9.0, 12.0, 17.0, 24.0)
EXPECTED_GAINED = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 24.0)


def least_coverage(bound: Bound, queries: int) -> float:
    """The least probability that the bound covers the true loss, over shares of few discordant queries."""
    lost, gained = np.meshgrid(np.arange(COUNTS + 1), np.arange(COUNTS + 1), indexing="ij")
    inside = lost + gained <= queries
    bounds = np.array(
        [[bound(a, b, queries) if a + b <= queries else 1.0 for b in range(COUNTS + 1)] for a in range(COUNTS + 1)]
    )
    counts = np.stack([lost, gained, np.where(inside, queries - lost - gained, 0)], axis=-1)[inside]
    return min(
        float(multinomial.pmf(counts, queries, [p / queries, q / queries, 1 - (p + q) / queries]) @ covered)
        for p in EXPECTED_LOST
        for q in EXPECTED_GAINED
        if p >= q
        for covered in [bounds[inside] >= (p - q) / queries - 1e-12]
    )


@pytest.mark.parametrize("queries", [200, 900, 5000])
def test_the_bound_covers_the_loss_for_every_share_of_few_discordant_queries(queries: int) -> None:
    """Exactly: over all counts of the multinomial distribution."""
    assert least_coverage(upper_loss, queries) >= 0.95


@pytest.mark.usefixtures("uncorrected")
def test_neither_the_uncorrected_score_nor_the_standard_error_covers_it() -> None:
    assert 0.93 < least_coverage(upper_loss, 900) < 0.945
    assert least_coverage(wald, 900) < 0.5  # of one lost query none may be among the 900


@pytest.mark.parametrize(("lost", "gained"), [(0.05, 0.05), (0.06, 0.05), (0.2, 0.1), (0.03, 0.05)])
@pytest.mark.parametrize("queries", [300, 1500])
def test_the_bound_covers_the_loss_with_many_discordant_queries(lost: float, gained: float, queries: int) -> None:
    counts = np.random.default_rng(1).multinomial(queries, [lost, gained, 1 - lost - gained], size=4000)
    covered = [upper_loss(a, b, queries) >= lost - gained for a, b, _ in counts.tolist()]
    assert np.mean(covered) >= 0.95 - 0.007  # two standard errors of 4,000 draws


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("re_routed", [0.1, 0.5, 0.9])
def test_the_bound_covers_the_loss_of_random_answers(share: float, re_routed: float) -> None:
    """A query's loss is an expectation over its route; here that of `share` of all, the rest loses nothing."""
    queries, loss = 600, share * (1 - re_routed) * 0.2
    counts = np.random.default_rng(2).multinomial(queries, [0.6 * share, 0.4 * share, 1 - share], size=3000)
    covered = [upper_loss(a * (1 - re_routed), b * (1 - re_routed), queries) >= loss for a, b, _ in counts.tolist()]
    assert np.mean(covered) >= 0.95


@pytest.mark.parametrize(("lost", "gained"), [(0.0, 0.0), (0.015, 0.015), (0.004, 0.001), (0.1, 0.12)])
@pytest.mark.parametrize("loss", [0.005, 0.01, 0.05])
def test_as_many_queries_as_needed_show_a_loss_and_one_less_does_not(lost: float, gained: float, loss: float) -> None:
    queries = queries_needed(lost, gained, loss)
    assert upper_loss(lost * queries, gained * queries, queries) == pytest.approx(loss, abs=1e-9)
    fewer = 0.99 * queries
    assert upper_loss(lost * fewer, gained * fewer, fewer) > loss


def test_no_number_of_queries_shows_less_than_the_measured_loss() -> None:
    assert queries_needed(0.02, 0.01, 0.01) == math.inf


def test_queries_that_agree_show_a_loss_of_about_three_and_a_half_over_their_number() -> None:
    # The exact bound is that of Clopper and Pearson; the corrected score is a bit above it.
    assert poisson.cdf(0, upper_loss(0, 0, 1000) * 1000) <= 0.05
    assert upper_loss(0, 0, 1000) == pytest.approx(3.6e-3, abs=5e-5)


# The table of docs/how-to/build-a-cascade.md.
NEEDED = {0.01: (217, 529, 1495), 0.03: (314, 986, 3526), 0.1: (746, 2826, 11043)}


@pytest.mark.parametrize("share", NEEDED)
def test_the_documented_numbers_of_queries_are_needed(share: float) -> None:
    assert tuple(round(queries_needed(share / 2, share / 2, loss)) for loss in (0.02, 0.01, 0.005)) == NEEDED[share]
