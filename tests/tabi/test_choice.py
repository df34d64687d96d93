"""Which candidates a served cascade uses."""

from __future__ import annotations

from typing import Any

import pytest

from testing.candidates import candidate, manifest
from tests.tabi.serving import cascades
from tidal.errors import InvalidArgument
from tidal.tabi.choice import CandidateChoice, single_level
from tidal.tabi.manifest import Calibration, Candidate, TabiManifest, Target
from tidal.tabi.parameters import TabiParameters
from tidal.triton.parameters import parse_parameters


def made(candidates: list[Candidate], chosen: int) -> TabiManifest:
    levels = 1 + max(candidate.levels[-1] for candidate in candidates)
    return manifest(candidates, [Calibration()] * levels).model_copy(update={"chosen": chosen})


def test_the_target_of_the_config_overrides_that_of_the_build() -> None:
    found = made(cascades(three=True), chosen=1)
    assert CandidateChoice(found, None).default == 1
    assert CandidateChoice(found, Target(accuracy=0.97)).default == 3
    assert CandidateChoice(found, Target(latency_ms=2)).default == 0
    assert CandidateChoice(found, Target(accuracy=0.8)).default == 0
    with pytest.raises(InvalidArgument, match=r"no candidate reaches the accuracy 0\.99"):
        CandidateChoice(found, Target(accuracy=0.99))


def test_candidates_on_the_same_levels_are_usable() -> None:
    found = made(cascades(three=True), chosen=1)
    assert CandidateChoice(found, None).levels == (0, 1)
    assert CandidateChoice(found, None).usable == (0, 1, 2)
    assert CandidateChoice(found, Target(accuracy=0.97)).usable == (0, 1, 2, 3)
    assert CandidateChoice(found, Target(accuracy=0.8)).usable == (0,)


@pytest.mark.parametrize(
    ("accuracy", "max_level", "serving", "index"),
    [
        (None, None, 1, 1),
        (None, None, 0, 0),
        (0.5, None, 1, 0),
        (0.9, None, 0, 1),
        (0.96, None, 1, 2),
        (0.999, None, 1, 2),
        (None, 1, 2, 1),  # the most accurate that begins at level 1; it ends there
        (None, 2, 2, 2),
        (0.96, 1, 1, 1),
        (0.5, 1, 1, 0),
    ],
)
def test_options_of_a_request_select_a_candidate(
    accuracy: float | None, max_level: int | None, serving: int, index: int
) -> None:
    choice = CandidateChoice(made(cascades(), chosen=1), None)
    assert choice.for_request(accuracy, max_level, serving) == index


def test_the_ladder_stops_at_the_accuracy_floor() -> None:
    candidates = [
        candidate("large", (1,), score=0.97, mean=9),
        candidate("careful", (0, 1), score=0.96, mean=6),
        candidate("bold", (0, 1), score=0.93, mean=3),
        candidate("small", (0,), score=0.8, mean=1),
    ]
    choice = CandidateChoice(made(candidates, chosen=1), None)
    assert choice.ladder(0.0) == (1, 2, 3)
    assert choice.ladder(0.9) == (1, 2)
    assert choice.ladder(0.96) == (1,)


def test_one_level_alone_is_a_valid_candidate() -> None:
    single = single_level(cascades(pruning=0.5)[1], 1)
    assert Candidate.model_validate(single.model_dump()) == single
    assert (single.levels, single.weights, single.pruning) == ((1,), ((1.0,),), None)


def parameters(**values: Any) -> TabiParameters:
    raw = {name: {"string_value": str(value)} for name, value in values.items()}
    return parse_parameters(raw, TabiParameters)[1]


def test_parameters_set_at_most_one_target() -> None:
    assert parameters().target() is None
    assert parameters(target_accuracy=0.9).target() == Target(accuracy=0.9)
    assert parameters(target_accuracy_loss=0.005).target() == Target(accuracy_loss=0.005)
    assert parameters(target_latency_ms=12).target() == Target(latency_ms=12)
    assert parameters(escalation_rate=0.25).target() == Target(escalation_rate=0.25)
    both = parameters(target_accuracy_loss=0.01, target_p75_ms=8, target_p99_ms=30)
    assert both.target() == Target(accuracy_loss=0.01, p75_ms=8, p99_ms=30)
    with pytest.raises(InvalidArgument, match="parameter target_p99_ms without a target; set one of target_accuracy, "):
        parameters(target_p99_ms=30).target()
    with pytest.raises(InvalidArgument, match="target_accuracy and escalation_rate; set only one"):
        parameters(target_accuracy=0.9, escalation_rate=0.2).target()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target_acuracy": 1}, "did you mean 'target_accuracy'"),
        ({"on_level_failure": "retry"}, "'answer' or 'error'"),
        ({"on_first_level_failure": "answer"}, "'error' or 'next'"),
        ({"target_accuracy_loss": -0.1}, "greater than or equal to 0"),
        ({"target_accuracy_loss": 1}, "less than 1"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"level_timeout_ms": 0}, "greater than 0"),
    ],
)
def test_bad_parameters_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parameters(**values)
    assert message in str(caught.value)
