"""Latency between measured points, accuracy, memory, and the table of arrival rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tidal.errors import InvalidArgument, NotFound
from tidal.otas.profile import GammaLatency, Profile


def latency(gammas: tuple[int, ...], rows: tuple[tuple[float, ...], ...], batches: tuple[int, ...]) -> GammaLatency:
    return GammaLatency(
        gammas=gammas, batches=batches, median_ms=rows, p95_ms=rows, image_bytes=tuple(range(1, len(gammas) + 1))
    )


MEASURED = latency((-4, 0, 2), ((4.0, 8.0, 12.0), (10.0, 20.0, 30.0), (20.0, 30.0, 44.0)), (1, 2, 4))
PROFILE = Profile(MEASURED, {"easy": {-4: 0.5, 0: 0.75, 2: 1.0}, "young": {0: 0.5}})


def test_latency_is_interpolated_between_measured_sizes_and_refused_beyond() -> None:
    assert PROFILE.latency_s(0, 1) == pytest.approx(0.010)
    assert PROFILE.latency_s(0, 3) == pytest.approx(0.025)
    assert PROFILE.latency_s(2, 4) == pytest.approx(0.044)
    assert PROFILE.latency.table_s.shape == (3, 5)
    np.testing.assert_array_equal(PROFILE.latency.table_s[:, 0], 0)
    for gamma, batch in ((0, 5), (0, 0), (1, 1)):
        with pytest.raises(InvalidArgument):
            PROFILE.latency_s(gamma, batch)


def test_accuracy_is_per_task() -> None:
    assert PROFILE.accuracy("easy", -4) == 0.5
    with pytest.raises(NotFound, match="'hard'"):
        PROFILE.accuracy("hard", 0)
    with pytest.raises(InvalidArgument, match="no accuracy for γ 2"):
        PROFILE.accuracy("young", 2)


def test_memory_grows_with_the_batch() -> None:
    assert PROFILE.memory_bytes(2, 4) == 12


def test_a_rate_maps_to_the_largest_gamma_that_sustains_it() -> None:
    assert [(step.gamma, step.max_rate) for step in PROFILE.rate_table] == [
        (2, pytest.approx(4 / 0.044)), (0, pytest.approx(4 / 0.030)), (-4, float("inf"))
    ]  # fmt: skip
    assert [PROFILE.gamma_for_rate(rate) for rate in (0, 90, 91, 100, 134, 1e9)] == [2, 2, 0, 0, -4, -4]


def test_a_gamma_that_is_not_faster_than_a_larger_one_is_skipped() -> None:
    slow = Profile(latency((-1, 0, 1), ((5.0,), (11.0,), (10.0,)), (1,)), {})
    assert [step.gamma for step in slow.rate_table] == [1, -1]
    slowest = Profile(latency((-1, 0), ((11.0,), (10.0,)), (1,)), {})
    assert [slowest.gamma_for_rate(rate) for rate in (1, 1e6)] == [0, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gammas": (0, -4, 2)}, "must ascend"),
        ({"batches": (2, 3, 4)}, "begin with 1"),
        ({"median_ms": ((1.0,), (1.0,), (1.0,))}, "one column per batch size"),
        ({"p95_ms": ((1.0, 1.0, 0.0),) * 3}, "positive"),
        ({"image_bytes": (1,)}, "one size per γ"),
    ],
)
def test_inconsistent_profiles_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GammaLatency.model_validate(MEASURED.model_dump() | changed)
