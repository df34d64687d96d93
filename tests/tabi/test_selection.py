"""The choice among candidates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.candidates import candidate
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, ExpectedLoss, Target
from tidal.tabi.paired import queries_needed
from tidal.tabi.selection import faster, meeting, provable_losses, select

CANDIDATES = [
    candidate("small", (0,), score=0.80, mean=1),
    candidate("base", (1,), score=0.88, mean=3),
    candidate("large", (2,), score=0.93, mean=9),
    candidate("small-large 0.95", (0, 2), score=0.925, mean=6, returned=(0.5, 0.5)),
    candidate("small-large 0.8", (0, 2), score=0.91, mean=4, returned=(0.7, 0.3)),
    candidate("base-large", (1, 2), score=0.94, mean=7, returned=(0.6, 0.4)),
]


def chosen(candidates: list[Candidate] = CANDIDATES, **target: float) -> str:
    return candidates[select(candidates, Target.model_validate(target))].name


@pytest.mark.parametrize(
    ("accuracy", "name"),
    [(0.5, "small"), (0.81, "base"), (0.9, "small-large 0.8"), (0.91, "small-large 0.8"), (0.935, "base-large")],
)
def test_an_accuracy_target_selects_the_fastest_that_reaches_it(accuracy: float, name: str) -> None:
    assert chosen(accuracy=accuracy) == name


def compared(*bounds: tuple[float, float], queries: int = 1000) -> list[Candidate]:
    """A small and a large level, and cascades with a measured loss and its bound, each faster than the one before."""
    return [
        candidate("small", (0,), score=0.80, mean=1),
        candidate("large", (1,), score=0.90, mean=9),
        *(
            candidate(
                f"cascade {place}",
                (0, 1),
                score=0.90 - measured,
                mean=8 - place,
                loss=ExpectedLoss(measured=measured, upper=upper, place=place, queries=queries),
            )
            for place, (measured, upper) in enumerate(bounds)
        ),
    ]


@pytest.mark.parametrize(
    ("loss", "name"), [(0.02, "cascade 1"), (0.012, "cascade 1"), (0.011, "cascade 0"), (0.04, "cascade 2")]
)
def test_an_accuracy_loss_selects_the_fastest_that_is_shown_to_be_within_it(loss: float, name: str) -> None:
    assert chosen(compared((0.0, 0.008), (0.002, 0.012), (0.015, 0.03)), accuracy_loss=loss) == name


def test_candidates_after_one_beyond_the_loss_are_not_considered() -> None:
    # The third would be chosen by its own bound, which it may owe to chance.
    candidates = compared((0.0, 0.008), (0.002, 0.013), (-0.001, 0.006))
    assert chosen(candidates, accuracy_loss=0.01) == "cascade 0"
    assert provable_losses(candidates) == [(2, 0.008), (3, 0.013), (4, 0.013)]


def test_a_loss_that_needs_more_data_is_refused_with_its_size() -> None:
    candidates = compared((0.002, 0.012), (0.02, 0.03), queries=1000)
    with pytest.raises(
        InvalidArgument,
        match=r"accuracy_loss is 0\.004, which the 1000 queries of the selection part cannot verify; accepted is "
        r"0\.0120 or more\. 'cascade 0' is the safest .*: it loses 0\.0020 on them and, with 95 % confidence, at "
        r"most 0\.0120 on new ones\. Give about 25000 queries to the selection part, or set an "
        r"accuracy_loss that is accepted",
    ):
        select(candidates, Target(accuracy_loss=0.004))


def test_a_refused_accuracy_loss_names_the_disagreement_that_more_data_must_resolve() -> None:
    loss = ExpectedLoss(measured=0.002, upper=0.0116, place=0, queries=1000, discordant=0.03)
    candidates = [*compared(), candidate("cascade", (0, 1), score=0.898, mean=8, loss=loss)]
    needed = math.ceil(queries_needed(0.016, 0.014, 0.006))
    with pytest.raises(
        InvalidArgument, match=rf"accepted is 0\.0116 .* right on 3\.0% of them, it loses .* about {needed} queries"
    ):
        select(candidates, Target(accuracy_loss=0.006))
    assert select(candidates, Target(accuracy_loss=0.0116)) == 2


def test_a_loss_that_no_cascade_is_within_selects_the_large_level() -> None:
    assert chosen(compared((0.002, 0.012), (0.02, 0.03)), accuracy_loss=0.001) == "large"
    assert chosen(compared(), accuracy_loss=0.1) == "large"


def test_an_accuracy_loss_requires_a_candidate_of_one_level() -> None:
    with pytest.raises(InvalidArgument, match=r"accuracy_loss is 0\.1, but no candidate is a single level"):
        select(CANDIDATES[3:], Target(accuracy_loss=0.1))


@pytest.mark.parametrize(
    ("latency", "name"), [(1, "small"), (5, "small-large 0.8"), (7, "base-large"), (99, "base-large")]
)
def test_a_latency_target_selects_the_most_accurate_within_it(latency: float, name: str) -> None:
    assert chosen(latency_ms=latency) == name


@pytest.mark.parametrize(
    ("rate", "name"), [(0.0, "base"), (0.3, "small-large 0.8"), (0.4, "base-large"), (1.0, "base-large")]
)
def test_an_escalation_rate_selects_the_most_accurate_cascade_within_it(rate: float, name: str) -> None:
    # "large" never escalates either, but no cascade starts with it.
    assert chosen(escalation_rate=rate) == name


def with_tail(each: Candidate, p75: float, p99: float) -> Candidate:
    tail = each.selection.latency.model_copy(update={"p75": p75, "p99": p99})
    return each.model_copy(update={"selection": each.selection.model_copy(update={"latency": tail})})


TAILS = [
    with_tail(each, p75, p99)
    for each, p75, p99 in zip(
        CANDIDATES, (1.2, 3.4, 9.5, 10.1, 9.9, 11.0), (1.5, 4.0, 12.0, 13.5, 13.0, 15.0), strict=True
    )
]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"accuracy": 0.9}, "small-large 0.8"),
        ({"accuracy": 0.9, "p99_ms": 12.5}, "large"),
        ({"accuracy": 0.9, "p75_ms": 9.9}, "small-large 0.8"),
        ({"accuracy": 0.9, "p75_ms": 9.7, "p99_ms": 20}, "large"),
        ({"latency_ms": 7, "p99_ms": 14}, "small-large 0.95"),
        ({"escalation_rate": 1.0, "p75_ms": 5}, "base"),
    ],
)
def test_limits_of_percentiles_hold_beside_a_target(target: dict[str, float], name: str) -> None:
    assert chosen(TAILS, **target) == name
    assert name in {TAILS[index].name for index in meeting(TAILS, Target.model_validate(target))}


def test_an_accuracy_loss_may_have_limits_of_percentiles() -> None:
    large, slow, fast = compared((0.0, 0.008), (0.002, 0.009))[1:]
    candidates = [with_tail(large, 9, 9), with_tail(slow, 9, 14), with_tail(fast, 9, 16)]
    assert chosen(candidates, accuracy_loss=0.01) == "cascade 1"
    assert chosen(candidates, accuracy_loss=0.01, p99_ms=15) == "cascade 0"
    assert chosen(candidates, accuracy_loss=0.01, p99_ms=10) == "large"


def test_the_error_of_a_limit_names_the_closest_candidate_that_meets_the_target() -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"no candidate that meets the target is within p75_ms 9 and p99_ms 11; the closest is 'large' with "
        r"p75_ms 9\.5 and p99_ms 12: raise the limit, or relax the target",
    ):
        select(TAILS, Target(accuracy=0.9, p75_ms=9, p99_ms=11))


def test_a_limit_alone_is_no_target() -> None:
    with pytest.raises(ValueError, match="expected one of accuracy, accuracy_loss, latency_ms and escalation_rate"):
        Target(p99_ms=5)


def test_ties_are_broken_by_the_other_figure() -> None:
    same = [
        candidate("worse", score=0.8, mean=2),
        candidate("better", score=0.9, mean=2),
        candidate("slower", score=0.9, mean=3),
    ]
    assert chosen(same, accuracy=0.5) == "better"
    assert chosen(same, latency_ms=5) == "better"
    assert chosen(same[::-1], latency_ms=5) == "better"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"accuracy": 0.97}, r"reaches the accuracy 0\.97; the best is 'base-large' with a score of 0\.9400 at 7 ms"),
        ({"latency_ms": 0.5}, r"mean latency of 0\.5 ms; the fastest is 'small' with a score of 0\.8000 at 1 ms"),
    ],
)
def test_a_refusal_says_how_close_the_best_came(target: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        select(CANDIDATES, Target.model_validate(target))


def test_the_error_of_an_escalation_rate_names_the_closest_candidate() -> None:
    with pytest.raises(InvalidArgument, match=r"at most 10\.0%.*'small-large 0\.8'.*30\.0% of its queries"):
        select(CANDIDATES[3:], Target(escalation_rate=0.1))
    with pytest.raises(InvalidArgument, match="all candidates are single models"):
        select(CANDIDATES[:3], Target(escalation_rate=0.1))


def test_faster_selects_among_candidates_on_the_same_levels() -> None:
    at = {each.name: index for index, each in enumerate(CANDIDATES)}
    assert faster(CANDIDATES, at["small-large 0.95"], 0.9) == at["small-large 0.8"]
    assert faster(CANDIDATES, at["small-large 0.95"], 0.91) == at["small-large 0.8"]  # its score exactly
    assert faster(CANDIDATES, at["small-large 0.95"], 0.92) is None
    assert faster(CANDIDATES, at["small-large 0.8"], 0.5) == at["small"]
    assert faster(CANDIDATES, at["base-large"], 0.5) == at["base"]
    assert faster(CANDIDATES, at["small"], 0.0) is None
    assert faster(CANDIDATES, at["large"], 0.0) is None


LISTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=12).map(
    lambda figures: [
        candidate(str(index), (0, 1), score=score, mean=mean, returned=(1 - rate, rate))
        for index, (score, mean, rate) in enumerate(figures)
    ]
)


@given(LISTS, st.floats(0, 1))
def test_no_candidate_that_meets_the_target_beats_the_chosen(candidates: list[Candidate], level: float) -> None:
    for target in (Target(accuracy=level), Target(latency_ms=100 * level + 0.05), Target(escalation_rate=level)):
        met = [
            (each.selection.score, each.selection.latency.mean)
            for each in candidates
            if (target.accuracy is None or each.selection.score >= target.accuracy)
            and (target.latency_ms is None or each.selection.latency.mean <= target.latency_ms)
            and (target.escalation_rate is None or each.selection.returned[1] <= target.escalation_rate)
        ]
        if not met:
            with pytest.raises(InvalidArgument):
                select(candidates, target)
            continue
        best = candidates[select(candidates, target)].selection
        assert (best.score, best.latency.mean) in met
        if target.accuracy is not None:
            assert best.latency.mean == min(mean for _, mean in met)
        else:
            assert best.score == max(score for score, _ in met)
