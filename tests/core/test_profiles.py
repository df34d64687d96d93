from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.interpolate import RegularGridInterpolator

from tidal.errors import InvalidArgument
from tidal.profiles import LatencyProfile

GRID = ((1.0, 1.5, 4.0), (2.0, 3.5, 9.0), (6.0, 11.0, 30.0))
PROFILE = LatencyProfile(lengths=(8, 32, 128), batches=(1, 2, 8), median_ms=GRID, p95_ms=GRID, threads=2)


@given(length=st.integers(8, 128), batch=st.integers(1, 8))
def test_lookup_is_bilinear(length: int, batch: int) -> None:
    reference = RegularGridInterpolator((PROFILE.lengths, PROFILE.batches), np.array(GRID))
    assert PROFILE.latency_ms(length, batch) == pytest.approx(float(reference((length, batch))))


def test_lengths_below_the_grid_cost_the_shortest() -> None:
    assert PROFILE.latency_ms(1, 2) == 1.5


@pytest.mark.parametrize(("length", "batch"), [(129, 1), (0, 1), (8, 9), (8, 0)])
def test_never_extrapolates(length: int, batch: int) -> None:
    with pytest.raises(InvalidArgument, match="covers lengths 1 to 128 and batch sizes 1 to 8"):
        PROFILE.latency_ms(length, batch)


def test_long_inputs_may_end_at_smaller_batches() -> None:
    ragged = ((1.0, 1.5, 4.0), (2.0, 3.5), (6.0,))
    profile = LatencyProfile(lengths=(8, 32, 128), batches=(1, 2, 8), median_ms=ragged, p95_ms=ragged, threads=1)
    assert profile.latency_ms(8, 8) == 4.0
    assert profile.latency_ms(20, 2) == pytest.approx(2.5)
    assert profile.latency_ms(80, 1) == pytest.approx(4.0)
    for length, batch in ((9, 3), (32, 8), (33, 2), (128, 2)):
        with pytest.raises(InvalidArgument, match="fewer for long inputs"):
            profile.latency_ms(length, batch)


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": (32, 8, 128)},
        {"batches": (2, 4, 8)},
        {"median_ms": GRID[:2]},
        {"p95_ms": ((1.0, 2.0), (1.0, 2.0), (1.0, 2.0))},
        {"median_ms": ((0.0, 1.0, 1.0), *GRID[1:])},
        {"median_ms": (GRID[0][:1], *GRID[1:]), "p95_ms": (GRID[0][:1], *GRID[1:])},
        {"median_ms": ((), (), ())},
        {"batches": (1, 2, 8, 16)},
        {"threads": 0},
        {"lenghts": (1,)},
    ],
)
def test_an_inconsistent_profile_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LatencyProfile.model_validate({**PROFILE.model_dump(), **change})
