"""Whether a fitted temperature is used: tests with labels drawn at a known temperature."""

from __future__ import annotations

import numpy as np
import pytest

from tidal.serving.softmax import softmax
from tidal.tabi.manifest import TemperatureChoice
from tidal_builders.tabi.calibration import calibration_error, choose_temperature, reliability


def drawn(seed: int, count: int, true: float, classes: int = 4, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels whose distribution is the softmax of these at the true temperature."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=scale, size=(count, classes)).astype(np.float32)
    return logits, (logits / true + generator.gumbel(size=logits.shape)).argmax(axis=1)


def chosen(seed: int, count: int, true: float) -> TemperatureChoice:
    return choose_temperature(*drawn(seed, count, true))


@pytest.mark.parametrize("true", [0.4, 2.5, 5.0])
def test_a_temperature_far_from_1_is_fitted_and_kept(true: float) -> None:
    choice = chosen(0, 800, true)
    assert choice.kept
    assert choice.temperature == choice.fitted == pytest.approx(true, rel=0.15)
    assert choice.nll_gain is not None
    assert choice.ece_gain is not None
    # The expected gain, since the distribution of the labels is known.
    logits, _ = drawn(0, 800, true)
    truth, plain = softmax(logits, true), softmax(logits)
    assert choice.nll_gain == pytest.approx(float((truth * np.log(truth / plain)).sum(axis=1).mean()), rel=0.4)


def test_calibrated_levels_keep_their_temperature() -> None:
    choices = [chosen(seed, 300, 1.0) for seed in range(40)]
    assert {choice.queries for choice in choices} == {300}
    assert all(choice.temperature == 1 for choice in choices if not choice.kept)
    # Two tests at 5 % each, both of which have to be passed.
    assert sum(choice.kept for choice in choices) <= 3


def test_the_gain_is_that_on_queries_which_were_not_fitted() -> None:
    # Labels of temperature 1: no other one is better on other queries, but one fitted to six queries is on these.
    gains = [chosen(seed, 60, 1.0).nll_gain for seed in range(40)]
    assert np.mean([gain for gain in gains if gain is not None]) < 0.01


def test_a_kept_temperature_is_not_worse_on_other_queries() -> None:
    """Slightly overconfident levels, which few queries reveal only in some cases."""
    kept, losses = 0, 0
    for seed in range(30):
        choice = chosen(seed, 250, 1.5)
        if not choice.kept:
            assert choice.temperature == 1
            continue
        kept += 1
        logits, truth = drawn(1000 + seed, 20_000, 1.5)
        right = logits.argmax(axis=1) == truth
        before, after = (
            calibration_error(reliability(softmax(logits, t).max(axis=1), right)) for t in (1.0, choice.temperature)
        )
        losses += after > before
    assert 0 < kept < 30
    assert losses <= 0.1 * kept


@pytest.mark.parametrize("count", [1, 10, 49])
def test_few_queries_never_change_the_temperature(count: int) -> None:
    assert chosen(0, count, 8.0) == TemperatureChoice(queries=count, kept=False)
    assert chosen(0, count, 8.0).temperature == 1


def test_answers_without_mistakes_do_not_determine_the_temperature() -> None:
    logits, _ = drawn(0, 200, 1.0)
    choice = choose_temperature(10 * logits, logits.argmax(axis=1))
    assert choice.fitted == pytest.approx(0.05, rel=0.01)
    assert not choice.kept
    assert choice.temperature == 1
