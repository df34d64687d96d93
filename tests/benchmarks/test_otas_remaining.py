"""The estimate of the time that trainings still take."""

from __future__ import annotations

import pytest

from benchmarks.otas.remaining import PromptTraining, RemainingTime


def remaining() -> RemainingTime:
    return RemainingTime({"a": PromptTraining(100.0, 10), "b": PromptTraining(200.0, 10), "c": PromptTraining(50.0, 4)})


def test_nothing_is_estimated_before_an_epoch() -> None:
    assert remaining().estimate() is None


def test_by_hand() -> None:
    time = remaining()
    time.timed("a", 1, 10.0)  # 0.1 s for one of `work`
    # 9 epochs of 10 s, 10 of 20 s, 4 of 5 s.
    assert time.estimate() == (pytest.approx(310.0), pytest.approx(310.0))
    time.timed("a", 2, 10.0)
    time.ended("a")
    # Two epochs are usual now.
    assert time.estimate() == (pytest.approx(2 * 20 + 2 * 5), pytest.approx(10 * 20 + 4 * 5))
    time.timed("b", 5, 20.0)  # of an earlier run it had finished four
    assert time.estimate() == (pytest.approx(20 + 2 * 5), pytest.approx(5 * 20 + 4 * 5))
    time.ended("b")
    # Three and a half epochs are usual; there are four at most.
    assert time.estimate() == (pytest.approx(3.5 * 5), pytest.approx(4 * 5))
    time.timed("c", 4, 5.0)
    time.ended("c")
    assert time.estimate() == (0.0, 0.0)


def test_trainings_of_earlier_runs_take_no_time_and_say_nothing_about_the_others() -> None:
    time = remaining()
    time.ended("a")
    time.timed("b", 1, 20.0)
    assert time.estimate() == (pytest.approx(9 * 20 + 4 * 5),) * 2
