"""Validation of profiles, and the tables made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.pets.policies.costs import make_profile
from tidal.errors import InvalidArgument
from tidal.pets.profile import Grid, PetsProfile
from tidal.profiles import LatencyProfile

ALPHA = ((4.0, 6.0, 14.0), (8.0, 12.0), (32.0,))  # no large batches of long inputs
BETA = ((0.5, 1.0, 3.0), (1.0, 2.0), (4.0,))
AXES: dict[str, Any] = {"lengths": (8, 16, 64), "batches": (1, 2, 4)}
PROFILE = PetsProfile(
    shared=LatencyProfile(**AXES, median_ms=ALPHA, p95_ms=ALPHA, threads=1),
    terms_ms={
        "adapter": Grid(**AXES, values=BETA),
        "bias": Grid(lengths=(64,), batches=(1, 8), values=((0.0, 0.4),)),
    },
    memory_bytes=Grid(lengths=(1, 64), batches=(1, 4), values=((10, 40), (640, 2560))),
)


def test_tables_interpolate_in_seconds_and_are_infinite_beyond_the_measured_range() -> None:
    tables = PROFILE.tables()
    assert tables.shared.shape == (65, 6)
    assert (tables.max_batch, tables.max_length) == (4, 64)
    assert tables.shared[3, 1] == 4e-3  # shorter than measured
    assert tables.shared[12, 2] == pytest.approx(9e-3)
    assert tables.shared[8, 3] == pytest.approx(10e-3)
    assert tables.terms[0, 12, 2] == pytest.approx(1.5e-3)
    assert tables.terms[1, 8, 3] == pytest.approx(0.4e-3 * 2 / 7)
    for length, queries in ((9, 3), (17, 2), (64, 2), (8, 5), (8, 0), (0, 1)):
        assert tables.shared[length, queries] == np.inf


def test_terms_of_no_queries_cost_nothing() -> None:
    assert (PROFILE.tables().terms[:, :, 0] == 0).all()


def test_an_unmeasured_kind_costs_as_much_as_the_most_expensive_one() -> None:
    tables = make_profile(lambda length, n: 9.0, {"a": lambda length, n: float(n), "b": lambda length, n: 5.0}).tables()
    assert [tables.kind(name) for name in ("a", "b", "new")] == [0, 1, 2]
    assert tables.terms[2, 4].tolist()[:-1] == pytest.approx([0, *[max(n, 5) / 1e3 for n in range(1, 17)]])


def test_memory_and_max_batch_limit_the_tables() -> None:
    tables = PROFILE.tables(max_batch=2, memory_bytes=300)
    assert tables.max_batch == 2
    assert tables.max_length == 30
    assert np.isfinite(tables.shared[15, 2])
    assert tables.shared[16, 2] == np.inf
    assert tables.terms[0, 16, 2] == 0


def test_noise_in_measured_memory_leaves_no_holes() -> None:
    memory = {(4, 2): 100.0}
    profile = make_profile(
        lambda length, n: 1.0, {"a": lambda length, n: 1.0}, memory=lambda length, n: memory.get((length, n), 10.0)
    )
    allowed = np.isfinite(profile.tables(memory_bytes=50).shared)
    assert allowed[3, 2]
    assert allowed[16, 1]
    assert not allowed[4:, 2:].any()


def test_limits_that_allow_no_batch_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="9 bytes of memory permit no batch; a single short query takes 10"):
        PROFILE.tables(memory_bytes=9)
    with pytest.raises(InvalidArgument, match="max_batch is 0; accepted is 1 or more"):
        PROFILE.tables(max_batch=0)


@pytest.mark.parametrize(("length", "queries"), [(65, 1), (0, 1), (8, 0), (8, 5), (16, 3)])
def test_a_grid_never_extrapolates(length: int, queries: int) -> None:
    grid = PROFILE.terms_ms["adapter"]
    assert grid.at(12, 2) == 1.5
    with pytest.raises(InvalidArgument, match="covers lengths 1 to 64 and 1 to 4 queries, fewer for long"):
        grid.at(length, queries)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"terms_ms": {}}, "terms_ms"),
        ({"terms_ms": {"bias": Grid(lengths=(32,), batches=(1, 4), values=((1, 1),))}}, "terms_ms of bias must cover"),
        ({"terms_ms": {"bias": Grid(lengths=(64,), batches=(1, 2), values=((1, 1),))}}, "terms_ms of bias must cover"),
        ({"terms_ms": {"bias": Grid(**AXES, values=((1, 1, 1), (1,), (1,)))}}, "got 4 of 8 tokens, 1 of 16 tokens"),
        ({"memory_bytes": Grid(lengths=(8,), batches=(1,), values=((1,),))}, "memory_bytes must cover"),
        ({"operators": {"lora": {"flops_per_token": 1, "gigabytes_per_s": PROFILE.memory_bytes}}}, "names lora"),
        ({"spread_tokens": -1}, "spread_tokens"),
        ({"streams": {"threshold_tokens": 1, "many": 0}}, "many"),
        ({"beta": 1}, "beta"),
    ],
)
def test_inconsistent_profiles_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        PetsProfile.model_validate({**dict(PROFILE), **change})


@pytest.mark.parametrize(
    "values", [((-1.0, 0, 0), *BETA[1:]), ((float("nan"), 0, 0), *BETA[1:]), BETA[:2], ((), (), ())]
)
def test_inconsistent_grids_are_refused(values: object) -> None:
    with pytest.raises(ValidationError):
        Grid(**AXES, values=values)


def test_round_trips_as_json() -> None:
    again = PetsProfile.model_validate_json(PROFILE.model_dump_json())
    assert again == PetsProfile.model_validate(PROFILE.model_dump())
    assert (again.tables().terms == PROFILE.tables().terms).all()
