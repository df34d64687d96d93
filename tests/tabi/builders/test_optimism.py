"""The warning that the score of a choice among many candidates on few rows is optimistic."""

from __future__ import annotations

import numpy as np
import pytest

from testing.candidates import candidate, expected
from tidal_builders.tabi.optimism import optimism_bound, optimism_warning, standard_error


def test_more_candidates_than_rows_cause_a_warning() -> None:
    chosen = candidate("c", score=0.93, reported=expected(0.901, 1.0))
    assert optimism_warning("accuracy", 152, 152, chosen) is None
    warning = optimism_warning("accuracy", 980, 152, chosen)
    assert warning is not None
    error = standard_error("accuracy", 0.93, 152)
    assert error == pytest.approx(0.0214, abs=1e-4)
    for part in ("980 candidates", "152 selection rows", f"{error * 3.7114:.4f}", "0.9300", "0.9010"):
        assert part in warning
    unknown = optimism_warning("r2", 980, 152, chosen)
    assert unknown is not None
    assert "standard error" not in unknown


@pytest.mark.parametrize(("compared", "rows", "score"), [(50, 40, 0.8), (980, 152, 0.93), (300, 60, 0.5)])
def test_the_bound_holds_for_candidates_of_equal_merit(compared: int, rows: int, score: float) -> None:
    generator = np.random.default_rng(0)
    best = generator.binomial(rows, score, size=(400, compared)).max(axis=1) / rows
    error = standard_error("accuracy", score, rows)
    assert error is not None
    # The bound exceeds the optimism by at most half of it.
    assert best.mean() - score <= optimism_bound(error, compared) <= 1.5 * (best.mean() - score)


def test_the_error_of_a_correlation_is_that_of_samples() -> None:
    generator = np.random.default_rng(1)
    truth = generator.normal(size=(3000, 80))
    values = 0.8 * truth + 0.6 * generator.normal(size=truth.shape)
    found = [np.corrcoef(one, other)[0, 1] for one, other in zip(truth, values, strict=True)]
    assert standard_error("pearson", 0.8, 80) == pytest.approx(np.std(found), rel=0.1)


def test_a_score_without_mistakes_has_an_error() -> None:
    assert standard_error("accuracy", 1.0, 30) == pytest.approx(np.sqrt(31 / 32 * 1 / 32 / 30))
