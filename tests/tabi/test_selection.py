"""The choice among candidates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.candidates import candidate, expected
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Candidate, Target
from tidal.tabi.selection import faster, least_score, select

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


@pytest.mark.parametrize(
    ("loss", "name"),
    [(0.0, "base-large"), (0.004, "base-large"), (0.005, "small-large 0.95"), (0.02, "small-large 0.8")],
)
def test_an_accuracy_loss_is_relative_to_the_last_level_alone(loss: float, name: str) -> None:
    assert chosen(accuracy_loss=loss) == name
    assert least_score(CANDIDATES, Target(accuracy_loss=loss)) == pytest.approx(0.93 - loss)


def test_an_accuracy_loss_uses_the_figures_of_the_given_part() -> None:
    both = [
        candidate("small", (0,), score=0.8, mean=1, reported=expected(0.9, 1)),
        candidate("large", (1,), score=0.9, mean=2, reported=expected(0.91, 2)),
    ]
    assert select(both, Target(accuracy_loss=0.05)) == 1
    assert select(both, Target(accuracy_loss=0.05), "reported") == 0
    assert least_score(both, Target(accuracy=0.7)) == 0.7
    assert least_score(both, Target(latency_ms=5)) is None


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


def test_ties_are_broken_by_the_other_figure() -> None:
    same = [
        candidate("worse", score=0.8, mean=2),
        candidate("better", score=0.9, mean=2),
        candidate("slower", score=0.9, mean=3),
    ]
    assert chosen(same, accuracy=0.5) == "better"
    assert chosen(same, latency_ms=5) == "better"
    assert chosen(same[::-1], latency_ms=5) == "better"


def test_the_part_says_which_figures_count() -> None:
    lucky = [
        candidate("lucky", score=0.95, mean=1, reported=expected(0.7, 1)),
        candidate("solid", score=0.9, mean=2, reported=expected(0.9, 2)),
    ]
    assert select(lucky, Target(accuracy=0.85)) == 0
    assert select(lucky, Target(accuracy=0.85), "reported") == 1


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
