"""Bounds of losses on new data: of metrics other than accuracy, of repeated texts, and of a choice among candidates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import beta

from testing.candidates import candidate, expected
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import ExpectedLoss, Metric, Target
from tidal.tabi.paired import queries_needed, upper_loss
from tidal.tabi.selection import select
from tidal_builders.tabi import loss_bounds
from tidal_builders.tabi.data import CALIBRATION, SELECTION, LabelledData, text_numbers
from tidal_builders.tabi.evaluate import score
from tidal_builders.tabi.loss_bounds import approximate_loss_bound, resampled_loss_bound
from tidal_builders.tabi.losses import compare_losses, independent_queries
from tidal_builders.tabi.pareto import Configuration
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.tabi.tables import remarks

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LossBound = Callable[[Callable[[Floats], float], Ints], float]


def regression_loss(metric: Metric, truth: Floats, one: Floats, other: Floats) -> Callable[[Floats], float]:
    return lambda weights: score(metric, one, truth, weights) - score(metric, other, truth, weights)


def regression(generator: np.random.Generator, queries: int, wrong: float) -> tuple[Floats, Floats, Floats]:
    """Truth, a large level's values, and a candidate's, which are far off for the share `wrong` of the queries."""
    truth = generator.normal(size=queries)
    one, other = (truth + noise * generator.normal(size=queries) for noise in (0.4, 0.45))
    return truth, one, np.where(generator.random(queries) < wrong, 2.5 * generator.normal(size=queries), other)


def plain_bootstrap(loss: Callable[[Floats], float], groups: Ints) -> float:
    generator, count = np.random.default_rng(0), len(groups)
    even = np.full(count, 1 / count)
    return float(np.quantile([loss(generator.multinomial(count, even).astype(np.float64)) for _ in range(200)], 0.95))


@pytest.mark.parametrize(
    ("metric", "wrong", "least"),
    # With arbitrary answers it covers less, as its docstring states.
    [("pearson", 0.0, 0.95), ("spearman", 0.02, 0.95), ("pearson", 0.1, 0.92), ("r2", 0.1, 0.92)],
)
def test_the_bound_of_a_regressions_metric_covers_the_true_loss(
    monkeypatch: pytest.MonkeyPatch, metric: Metric, wrong: float, least: float
) -> None:
    monkeypatch.setattr(loss_bounds, "_RESAMPLES", 200)
    generator, queries, repeats = np.random.default_rng(2), 150, 40
    true = regression_loss(metric, *regression(generator, 300_000, wrong))(np.ones(300_000))
    losses = [regression_loss(metric, *regression(generator, queries, wrong)) for _ in range(repeats)]
    covered = np.mean([resampled_loss_bound(each, np.arange(queries)) >= true for each in losses])
    assert covered >= least - 2 * math.sqrt(0.95 * 0.05 / repeats)  # two standard errors
    assert covered >= np.mean([plain_bootstrap(each, np.arange(queries)) >= true for each in losses])


def test_the_bound_has_one_event_more_than_was_seen() -> None:
    """Of a share it is about the exact bound, where the plain bootstrap is far below it."""

    def share(lost: npt.NDArray[np.bool_]) -> Callable[[Floats], float]:
        return lambda weights: float(np.average(lost, weights=weights))

    for events in (1, 4, 10):
        lost = np.arange(500) < events
        found = resampled_loss_bound(share(lost), np.arange(500))
        exact = beta.ppf(0.95, events + 1, 500 - events)
        assert found == pytest.approx(exact, abs=1.2 / 500)  # in whole events
    assert plain_bootstrap(share(np.arange(500) < 1), np.arange(500)) < 3.5 / 500  # the exact one is 4.7 / 500


def test_the_approximate_bound_is_that_of_the_standard_error() -> None:
    generator = np.random.default_rng(3)
    losses = 0.1 + generator.normal(size=4000)
    bound = approximate_loss_bound(lambda weights: float(np.average(losses, weights=weights)), np.arange(4000))
    assert bound - losses.mean() == pytest.approx(1.645 / np.sqrt(4000), rel=0.35)  # from 20 sets


@pytest.mark.parametrize("bound", [resampled_loss_bound, approximate_loss_bound])
def test_the_bound_of_repeated_texts_is_that_of_the_texts(bound: LossBound) -> None:
    losses = np.random.default_rng(4).normal(size=100)

    def mean(values: Floats) -> Callable[[Floats], float]:
        return lambda weights: float(np.average(values, weights=weights))

    once = bound(mean(losses), np.arange(100))
    assert bound(mean(np.repeat(losses, 9)), np.repeat(np.arange(100), 9)) == pytest.approx(once)
    assert bound(mean(np.repeat(losses, 9)), np.arange(900)) < once


def test_answers_that_do_not_differ_have_the_bound_of_what_they_do_not_show() -> None:
    assert resampled_loss_bound(lambda _: 0.25, np.arange(600)) == pytest.approx(0.25 + 3 / 600, abs=1e-5)
    assert resampled_loss_bound(lambda _: 0.25, np.zeros(600, np.int64)) > 1


def test_repeated_texts_count_as_fewer_queries() -> None:
    assert independent_queries(np.arange(70)) == 70
    assert independent_queries(np.repeat(np.arange(70), 10)) == pytest.approx(70)
    assert independent_queries(np.array([0, 0, 0, 1, 2, 3])) == pytest.approx(36 / 12)
    texts = (("a",), ("b",), (" a",), ("c",), ("b ",))
    assert text_numbers(texts, np.array([1, 2, 4, 0])).tolist() == [0, 1, 0, 1]


def test_the_bound_covers_the_loss_where_texts_are_repeated() -> None:
    """All queries of a text are in one part of the data, so a part has that text or does not have it."""
    generator, sizes = np.random.default_rng(5), np.array([1] * 12 + [10] * 4)
    covered, without = [], []
    for _ in range(1500):
        groups = np.repeat(np.arange(300), generator.choice(sizes, 300))
        lost = (generator.random(300) < 0.03)[groups].mean()
        count = independent_queries(groups)
        # Not of a weighted mean, since large texts are no harder than small ones.
        covered.append(upper_loss(lost * count, 0, count) >= 0.03)
        without.append(upper_loss(lost * len(groups), 0, len(groups)) >= 0.03)
    assert np.mean(covered) >= 0.94
    assert np.mean(without) < 0.9


@dataclass
class Answers:
    """A chain of `Drawn`: whether each query is answered right, by candidate."""

    right_by: Floats
    metric: Metric = "accuracy"

    def reach(self, cutoff: float | None, _slope: float | None) -> int:
        return 0 if cutoff is None else round(1000 * cutoff)

    def right(self, reach: int, _weights: Any) -> Floats:
        return np.asarray(self.right_by[reach], np.float64)


class Drawn:
    """A large level, number 0, and 30 candidates, each faster and worse than the one before, on drawn queries.

    Candidate n answers differently from the large level where a query's depth is below its share, so that candidates
    differ on queries that contain each other, as those of a falling cut-off do.
    """

    losses = np.concatenate([[0.0], np.linspace(0.0, 0.03, 30)])
    shares = np.concatenate([[0.0], 0.01 + 2 * losses[1:]])
    parts = np.repeat([CALIBRATION, SELECTION], [400, 1500]).astype(np.int8)

    def __init__(self, generator: np.random.Generator) -> None:
        depth = generator.random(len(self.parts))
        # Of the first 1 % as many are lost as gained, of the further ones three of four.
        large = generator.random(len(depth)) < np.where(depth < 0.01, 0.5, 0.75)
        self.right_by = (large ^ (depth < self.shares[:, None])).astype(np.float64)

    def rows(self, part: int) -> Ints:
        return np.flatnonzero(self.parts == part)

    def chain_of(self, _levels: Any, _pruning: Any, part: int) -> Answers:
        return Answers(self.right_by[:, self.parts == part])

    def measured(self, number: int) -> float:
        """The loss on the selection part."""
        return float((self.right_by[0] - self.right_by[number])[self.parts == SELECTION].mean())


LARGE = Configuration((1,), None, None, None, None, ((1.0,),), expected(0.9, 100.0), 0.9)
CANDIDATES = [
    Configuration(
        (0, 1),
        None,
        number / 1000,
        10.0,
        "accuracy",
        ((1.0,), (0.5, 0.5)),
        expected(0.9, 80.0 - number, (0.5, 0.5)),
        0.9,
    )
    for number in range(1, 31)
]


def test_the_loss_of_a_choice_among_many_candidates_is_within_the_target() -> None:
    """In 95 of 100 cases; the fastest candidate whose measured loss is within it breaks it far more often."""
    generator, target, repeats = np.random.default_rng(6), 0.01, 400
    data = LabelledData(
        tuple((str(row),) for row in range(len(Drawn.parts))), Drawn.parts.astype(np.int64), Drawn.parts
    )
    broken, naively_broken, faster = 0, 0, 0
    for _ in range(repeats):
        drawn = Drawn(generator)
        losses = compare_losses(cast(Any, drawn), data, [LARGE, *CANDIDATES])
        candidates = [
            candidate(
                str(0 if each.cutoff is None else round(1000 * each.cutoff)),
                each.levels,
                mean=each.selection.latency.mean,
                loss=losses.get(each),
            )
            for each in (LARGE, *CANDIDATES)
        ]
        naively_broken += Drawn.losses[max(number for number in range(31) if drawn.measured(number) <= target)] > target
        try:
            chosen = int(candidates[select(candidates, Target(accuracy_loss=target))].name)
        except InvalidArgument:
            continue  # refused
        broken += Drawn.losses[chosen] > target
        faster += chosen > 0
    assert broken <= 0.05 * repeats
    assert faster > 0.3 * repeats
    assert naively_broken > 0.3 * repeats


def test_a_loss_is_compared_with_the_number_of_different_texts() -> None:
    drawn, rows = Drawn(np.random.default_rng(7)), len(Drawn.parts)
    once = LabelledData(tuple((str(row),) for row in range(rows)), Drawn.parts.astype(np.int64), Drawn.parts)
    repeated = LabelledData(tuple((str(row // 5),) for row in range(rows)), Drawn.parts.astype(np.int64), Drawn.parts)
    few, many = (
        compare_losses(cast(Any, drawn), each, [LARGE, CANDIDATES[0]])[CANDIDATES[0]] for each in (repeated, once)
    )
    assert (few.queries, many.queries) == (300, 1500)
    assert few.measured == many.measured == pytest.approx(drawn.measured(1))
    assert few.upper > many.upper > many.measured
    assert few.discordant == many.discordant == pytest.approx((drawn.right_by[0] != drawn.right_by[1])[400:].mean())


def test_the_number_of_queries_that_a_loss_needs_is_that_of_the_bound() -> None:
    loss = ExpectedLoss(measured=0.002, upper=0.012, place=0, queries=1000, discordant=0.03)
    needed = loss.queries_for(0.01)
    assert upper_loss(0.016 * needed, 0.014 * needed, needed) == pytest.approx(0.01)


def test_the_report_says_what_the_data_supports_and_how_much_of_it_smaller_losses_need() -> None:
    loss = ExpectedLoss(measured=0.002, upper=0.01195, place=0, queries=990, discordant=0.03)
    report = SearchReport(
        metric="accuracy",
        target=Target(accuracy_loss=0.01),
        rows={"calibration": 500, "selection": 1000, "report": 2500},
        levels=(),
        candidates=(
            candidate("both", (0, 1), score=0.898, mean=8, loss=loss),
            candidate("large", (1,), score=0.9, mean=9),
        ),
        chosen=None,
        tried=1,
        too_slow=0,
    )
    (remark,) = (each for each in remarks(report) if each.startswith("accuracy_loss that the 990 queries"))
    half, one = (math.ceil(queries_needed(0.016, 0.014, target)) for target in (0.005, 0.01))
    assert "0.0120 at 8.00 ms" in remark
    assert "for 'both', the safest of the faster candidates, only one of which" in remark
    assert "right on 3.0% of them" in remark
    assert f"0.005 about {half} ({math.ceil(4 * queries_needed(0.016, 0.014, 0.005))}), 0.01 about {one} (" in remark
