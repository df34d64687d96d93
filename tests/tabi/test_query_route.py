"""A query's route through cascades of one, two and three levels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.candidates import candidate, manifest
from tidal.errors import Internal
from tidal.serving.softmax import softmax
from tidal.tabi.equations import draw, reroute_probability
from tidal.tabi.manifest import Calibration, Candidate, RegressionCalibration, TabiManifest
from tidal.tabi.query_route import Route, ensembles, feed_all

SURE, UNSURE = [0.0, 50.0], [0.2, 0.0]
PLAIN = Calibration(temperature=1)


def cascade(levels: int = 3, chosen: Candidate | None = None) -> tuple[TabiManifest, Candidate]:
    chosen = chosen or candidate("all", range(levels), slope=1e6)
    return manifest([chosen], [PLAIN] * levels), chosen


def make_route(
    made: tuple[TabiManifest, Candidate], *, key: bytes = b"key", row: int = 0, last_level: int = 9
) -> Route:
    return Route(*made, key, row, 1, last_level=last_level)


def test_a_confident_query_returns_early() -> None:
    route = make_route(cascade())
    assert route.level == 0
    assert not route.feed(SURE)
    answer = route.answer()
    assert (answer.label, answer.level, answer.degraded) == (1, 1, False)
    assert answer.outputs.tolist() == softmax(SURE).tolist()
    assert answer.confidence == pytest.approx(1)
    assert route.level == 0


def test_an_uncertain_query_passes_through_all_levels() -> None:
    route = make_route(cascade())
    assert route.feed(UNSURE)
    assert route.level == 1
    assert route.feed(UNSURE)
    assert route.level == 2
    assert not route.feed(UNSURE)
    assert (route.answer().level, route.answer().degraded) == (3, False)


def test_the_answer_by_hand() -> None:
    # Eq. 2 gives 0.75 and 0.25, then 0.1 and 0.9. Eq. 6: 0.3 x 0.75 + 0.7 x 0.1 = 0.295. The confidence is the second
    # level's own at its temperature 2: the logit ln 9 becomes ln 3, which is 0.75.
    chosen = candidate("two", (0, 1), cutoff=0.9, weights=[[1], [0.3, 0.7]])
    route = make_route((manifest([chosen], [PLAIN, Calibration(temperature=2)]), chosen))
    assert route.feed([math.log(3), 0])
    assert not route.feed([0, math.log(9)])
    answer = route.answer()
    assert answer.outputs == pytest.approx([0.295, 0.705])
    assert (answer.label, answer.level) == (1, 2)
    assert answer.confidence == pytest.approx(0.75)


def test_weights_are_those_of_the_levels_that_ran() -> None:
    chosen = candidate("three", range(3), weights=[[1], [0.2, 0.8], [0.1, 0.2, 0.7]])
    first, second, third = [0.1, 0.0], [0.0, 0.2], [0.3, 0.0]
    route = make_route(cascade(chosen=chosen))
    route.feed(first)
    route.feed(second)
    route.stop()
    assert route.answer().outputs == pytest.approx(0.2 * softmax(first) + 0.8 * softmax(second))
    route = make_route(cascade(chosen=chosen))
    for logits in (first, second, third):
        route.feed(logits)
    assert route.answer().outputs == pytest.approx(0.1 * softmax(first) + 0.2 * softmax(second) + 0.7 * softmax(third))


def test_a_candidate_skips_levels_and_a_single_model_never_reroutes() -> None:
    route = make_route(cascade(chosen=candidate("ends", (0, 2))))
    assert route.feed(UNSURE)
    assert route.level == 2
    assert not route.feed(UNSURE)
    assert route.answer().level == 3
    single = make_route(cascade(chosen=candidate("large", (2,))))
    assert single.level == 2
    assert not single.feed(UNSURE)
    assert single.answer().level == 3


@pytest.mark.parametrize(("last_level", "ran"), [(0, [0]), (1, [0]), (2, [0, 2]), (9, [0, 2, 3])])
def test_only_the_first_level_may_be_beyond_the_last_allowed(last_level: int, ran: list[int]) -> None:
    route = make_route(cascade(4, candidate("some", (0, 2, 3))), last_level=last_level)
    for level in ran:
        assert route.level == level
        assert route.feed(UNSURE) == (level != ran[-1])
    answer = route.answer()
    assert (answer.level, answer.degraded) == (ran[-1] + 1, False)
    only = make_route(cascade(4, candidate("large", (3,))), last_level=0)
    assert only.level == 3
    assert not only.feed(UNSURE)


def test_a_stopped_route_answers_degraded_with_the_levels_that_ran() -> None:
    route = make_route(cascade())
    route.feed(UNSURE)
    assert route.level == 1
    route.stop()
    answer = route.answer()
    assert (answer.level, answer.degraded) == (1, True)
    assert answer.outputs.tolist() == softmax(UNSURE).tolist()
    assert route.level == 0


def test_a_stop_after_the_last_answer_changes_nothing() -> None:
    route = make_route(cascade())
    route.feed(SURE)
    route.stop()
    assert not route.answer().degraded


def test_a_stop_before_any_answer_is_an_error() -> None:
    with pytest.raises(Internal, match="no level of the cascade has answered"):
        make_route(cascade()).stop()


def test_an_active_route_has_no_answer_and_an_ended_one_accepts_no_outputs() -> None:
    route = make_route(cascade())
    with pytest.raises(Internal, match="level 'level0' has not answered yet"):
        route.answer()
    route.feed(UNSURE)
    with pytest.raises(Internal, match="level 'level1' has not answered yet"):
        route.answer()
    route.stop()
    with pytest.raises(Internal, match="ended"):
        route.feed(UNSURE)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([0.0, math.nan], "level 'level1' produced outputs that are not finite"),
        ([0.0, math.inf], "not finite"),
        ([0.0, 1.0, 2.0], r"level 'level1' produced outputs of shape \[3\]; expected \[2\]"),
        ([[0.0, 1.0]], r"shape \[1, 2\]"),
    ],
)
def test_invalid_outputs_leave_the_route_unchanged(logits: object, message: str) -> None:
    route = make_route(cascade())
    route.feed(UNSURE)
    with pytest.raises(Internal, match=message):
        route.feed(logits)  # type: ignore[arg-type]
    assert route.level == 1
    route.stop()
    assert route.answer().degraded


def test_a_regression_averages_values() -> None:
    narrow, wide = (
        Calibration(
            regression=RegressionCalibration(
                tolerance=1, values=(0,), deviations=(deviation,), expected=(0, 1), observed=(0, 1)
            )
        )
        for deviation in (0.1, 10)
    )
    chosen = candidate("two", (0, 1), weights=[[1], [0.25, 0.75]])
    route = make_route((manifest([chosen], [wide, narrow], labels=()), chosen))
    assert route.feed([2.0])
    assert not route.feed([4.0])
    answer = route.answer()
    assert answer.label is None
    assert answer.value == pytest.approx(3.5)
    assert answer.confidence == pytest.approx(1)
    sure = make_route((manifest([chosen], [narrow, wide], labels=()), chosen))
    assert not sure.feed([2.0])
    assert sure.answer().value == 2


@given(st.binary(min_size=1, max_size=8), st.integers(0, 63), st.floats(0.5, 4))
def test_the_draw_decides_and_equal_requests_have_equal_routes(key: bytes, row: int, logit: float) -> None:
    chosen = candidate("two", (0, 1), cutoff=0.6, slope=5)
    made = manifest([chosen], [Calibration(temperature=1.5), PLAIN]), chosen
    confidence = 1 / (1 + math.exp(-logit / 1.5))
    chance = reroute_probability(confidence, 0.6, 5)
    escalated = make_route(made, key=key, row=row).feed([logit, 0])
    assert escalated == (draw(1, key, row, 0) < chance)
    assert escalated == make_route(made, key=key, row=row).feed([logit, 0])


def test_the_share_of_rerouted_queries_is_the_probability() -> None:
    # At temperature 1 the logit ln 9 is a confidence of 0.9, midway between c and 1: half of the queries escalate.
    chosen = candidate("two", (0, 1), cutoff=0.8)
    made = cascade(2, chosen)
    escalated = [make_route(made, key=b"%d" % number).feed([math.log(9), 0]) for number in range(2000)]
    assert abs(np.mean(escalated) - 0.5) < 0.05


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(-5, 5), st.integers(0, 3), st.sampled_from([0, 1, 9])),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([1.0, 1.7]),
)
def test_many_routes_at_once_equal_single_ones(queries: list[tuple[int, float, int, int]], temperature: float) -> None:
    """Queries of different candidates, confidences and `max_level` take the same routes alone and together."""
    chosen = [
        candidate("one", (0,)),
        candidate("two", (0, 1), cutoff=0.7, slope=6.0, weights=[[1], [0.3, 0.7]]),
        candidate("three", (0, 1, 2), cutoff=0.9, slope=2.0, weights=[[1], [0.5, 0.5], [0.2, 0.3, 0.5]]),
        candidate("ends", (0, 2), cutoff=0.6, slope=20.0),
    ]
    made = manifest(chosen, [Calibration(temperature=temperature)] * 3)

    def routes() -> list[Route]:
        return [
            Route(made, chosen[which], b"%d" % key, row, 1, last_level=last)
            for row, (which, _, key, last) in enumerate(queries)
        ]

    together, alone = routes(), routes()
    logits = [[logit, 0.0] for _, logit, _, _ in queries]
    active = list(range(len(queries)))
    while active:
        level = min(together[row].level for row in active)
        here = [row for row in active if together[row].level == level]
        fed = feed_all([together[row] for row in here], [logits[row] for row in here])
        assert fed == [alone[row].feed(logits[row]) for row in here]
        active = [row for row in active if row not in here or fed[here.index(row)] is True]
    assert ensembles(together) == pytest.approx(np.stack([route.answer().outputs for route in alone]))
    for one, other in zip(together, alone, strict=True):
        assert one.confidence == pytest.approx(other.confidence)
        assert (one.answer().level, one.answer().label) == (other.answer().level, other.answer().label)


def test_invalid_outputs_leave_only_their_own_route_unchanged() -> None:
    made = cascade()
    routes = [make_route(made) for _ in range(4)]
    routes[3].feed(SURE)
    bad, sure, unsure, ended = feed_all(routes, [[math.nan, 0.0], SURE, UNSURE, SURE])
    assert isinstance(bad, Internal)
    assert str(bad) == "level 'level0' produced outputs that are not finite"
    assert (sure, unsure) == (False, True)
    assert isinstance(ended, Internal)
    assert routes[0].feed(UNSURE)
    with pytest.raises(Internal, match="has not answered yet"):
        ensembles(routes)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=2), st.floats(0.2, 5), st.integers(0, 99))
def test_a_reranker_is_a_classifier_of_two_classes(logits: list[float], temperature: float, number: int) -> None:
    """Its logit is that of relevant, against 0: the sigmoid is the softmax of both."""
    chosen = candidate("two", (0, 1), cutoff=0.8, weights=[[1], [0.4, 0.6]])
    classes = manifest([chosen], [Calibration(temperature=temperature), PLAIN])
    scores = classes.model_copy(update={"task": "rerank"})
    one, two = (make_route((each, chosen), key=b"%d" % number) for each in (scores, classes))
    for logit in logits:
        again = one.feed([logit])
        assert again == two.feed([0, logit])
        if not again:
            break
    assert one.confidence == pytest.approx(two.confidence)
    expected = [1 / (1 + math.exp(-logit)) for logit in logits][: one.level + 1]
    weights = chosen.weights[one.level]
    relevant = sum(weight * each for weight, each in zip(weights, expected, strict=True))
    assert one.answer().outputs.tolist() == pytest.approx([1 - relevant, relevant])
    assert one.answer().outputs.tolist() == two.answer().outputs.tolist()


def test_a_reranker_with_two_logits_is_a_fault() -> None:
    chosen = candidate("one", (0,))
    made = manifest([chosen], [PLAIN]).model_copy(update={"task": "rerank"})
    with pytest.raises(Internal, match=r"outputs of shape \[2\]; expected \[1\]"):
        make_route((made, chosen)).feed([0.0, 1.0])
