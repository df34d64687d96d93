"""A query's way through cascades of one, two and three levels."""

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
from tidal.tabi.route import Route

SURE, UNSURE = [0.0, 50.0], [0.2, 0.0]
PLAIN = Calibration(temperature=1)


def cascade(levels: int = 3, chosen: Candidate | None = None) -> tuple[TabiManifest, Candidate]:
    chosen = chosen or candidate("all", range(levels), slope=1e6)
    return manifest([chosen], [PLAIN] * levels), chosen


def route(made: tuple[TabiManifest, Candidate], *, key: bytes = b"key", row: int = 0, last_level: int = 9) -> Route:
    return Route(*made, key, row, 1, last_level=last_level)


def test_a_sure_query_returns_early() -> None:
    way = route(cascade())
    assert way.level == 0
    assert not way.feed(SURE)
    answer = way.answer()
    assert (answer.label, answer.level, answer.degraded) == (1, 1, False)
    assert answer.outputs.tolist() == softmax(SURE).tolist()
    assert answer.confidence == pytest.approx(1)
    assert way.level == 0


def test_an_unsure_query_goes_through_all_levels() -> None:
    way = route(cascade())
    assert way.feed(UNSURE)
    assert way.level == 1
    assert way.feed(UNSURE)
    assert way.level == 2
    assert not way.feed(UNSURE)
    assert (way.answer().level, way.answer().degraded) == (3, False)


def test_the_answer_by_hand() -> None:
    # Eq. 2 gives 0.75 and 0.25, then 0.1 and 0.9. Eq. 6: 0.3 x 0.75 + 0.7 x 0.1 = 0.295. The confidence is the second
    # level's own at its temperature 2: the logit ln 9 becomes ln 3, which is 0.75.
    chosen = candidate("two", (0, 1), cutoff=0.9, weights=[[1], [0.3, 0.7]])
    way = route((manifest([chosen], [PLAIN, Calibration(temperature=2)]), chosen))
    assert way.feed([math.log(3), 0])
    assert not way.feed([0, math.log(9)])
    answer = way.answer()
    assert answer.outputs == pytest.approx([0.295, 0.705])
    assert (answer.label, answer.level) == (1, 2)
    assert answer.confidence == pytest.approx(0.75)


def test_weights_are_those_of_the_levels_that_ran() -> None:
    chosen = candidate("three", range(3), weights=[[1], [0.2, 0.8], [0.1, 0.2, 0.7]])
    first, second, third = [0.1, 0.0], [0.0, 0.2], [0.3, 0.0]
    way = route(cascade(chosen=chosen))
    way.feed(first)
    way.feed(second)
    way.stop()
    assert way.answer().outputs == pytest.approx(0.2 * softmax(first) + 0.8 * softmax(second))
    way = route(cascade(chosen=chosen))
    for logits in (first, second, third):
        way.feed(logits)
    assert way.answer().outputs == pytest.approx(0.1 * softmax(first) + 0.2 * softmax(second) + 0.7 * softmax(third))


def test_a_candidate_skips_levels_and_a_single_model_never_reroutes() -> None:
    way = route(cascade(chosen=candidate("ends", (0, 2))))
    assert way.feed(UNSURE)
    assert way.level == 2
    assert not way.feed(UNSURE)
    assert way.answer().level == 3
    single = route(cascade(chosen=candidate("large", (2,))))
    assert single.level == 2
    assert not single.feed(UNSURE)
    assert single.answer().level == 3


@pytest.mark.parametrize(("last_level", "ran"), [(0, [0]), (1, [0]), (2, [0, 2]), (9, [0, 2, 3])])
def test_no_level_beyond_the_last_runs_but_the_first(last_level: int, ran: list[int]) -> None:
    way = route(cascade(4, candidate("some", (0, 2, 3))), last_level=last_level)
    for level in ran:
        assert way.level == level
        assert way.feed(UNSURE) == (level != ran[-1])
    answer = way.answer()
    assert (answer.level, answer.degraded) == (ran[-1] + 1, False)
    only = route(cascade(4, candidate("large", (3,))), last_level=0)
    assert only.level == 3
    assert not only.feed(UNSURE)


def test_a_stop_gives_what_ran_so_far_and_says_so() -> None:
    way = route(cascade())
    way.feed(UNSURE)
    assert way.level == 1
    way.stop()
    answer = way.answer()
    assert (answer.level, answer.degraded) == (1, True)
    assert answer.outputs.tolist() == softmax(UNSURE).tolist()
    assert way.level == 0


def test_a_stop_after_the_last_answer_changes_nothing() -> None:
    way = route(cascade())
    way.feed(SURE)
    way.stop()
    assert not way.answer().degraded


def test_a_stop_before_any_answer_is_an_error() -> None:
    with pytest.raises(Internal, match="no level of the cascade has answered"):
        route(cascade()).stop()


def test_an_active_route_has_no_answer_and_an_ended_one_accepts_no_outputs() -> None:
    way = route(cascade())
    with pytest.raises(Internal, match="level 'level0' has not answered yet"):
        way.answer()
    way.feed(UNSURE)
    with pytest.raises(Internal, match="level 'level1' has not answered yet"):
        way.answer()
    way.stop()
    with pytest.raises(Internal, match="ended"):
        way.feed(UNSURE)


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
    way = route(cascade())
    way.feed(UNSURE)
    with pytest.raises(Internal, match=message):
        way.feed(logits)  # type: ignore[arg-type]
    assert way.level == 1
    way.stop()
    assert way.answer().degraded


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
    way = route((manifest([chosen], [wide, narrow], labels=()), chosen))
    assert way.feed([2.0])
    assert not way.feed([4.0])
    answer = way.answer()
    assert answer.label is None
    assert answer.value == pytest.approx(3.5)
    assert answer.confidence == pytest.approx(1)
    sure = route((manifest([chosen], [narrow, wide], labels=()), chosen))
    assert not sure.feed([2.0])
    assert sure.answer().value == 2


@given(st.binary(min_size=1, max_size=8), st.integers(0, 63), st.floats(0.5, 4))
def test_the_draw_decides_and_the_same_request_has_the_same_route(key: bytes, row: int, logit: float) -> None:
    chosen = candidate("two", (0, 1), cutoff=0.6, slope=5)
    made = manifest([chosen], [Calibration(temperature=1.5), PLAIN]), chosen
    confidence = 1 / (1 + math.exp(-logit / 1.5))
    chance = reroute_probability(confidence, 0.6, 5)
    went = route(made, key=key, row=row).feed([logit, 0])
    assert went == (draw(1, key, row, 0) < chance)
    assert went == route(made, key=key, row=row).feed([logit, 0])


def test_the_share_of_rerouted_queries_is_the_probability() -> None:
    # At temperature 1 the logit ln 9 is a confidence of 0.9, midway between c and 1: one in two.
    chosen = candidate("two", (0, 1), cutoff=0.8)
    made = cascade(2, chosen)
    went = [route(made, key=b"%d" % number).feed([math.log(9), 0]) for number in range(2000)]
    assert abs(np.mean(went) - 0.5) < 0.05
