"""Arbitrary costs and waiting queries."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.pets.policies.costs import make_profile
from tidal.pets.policies import (
    Pool,
)
from tidal.pets.profile import Tables

LONGEST, MOST, KINDS = 5, 4, ("a", "b")


@st.composite
def any_tables(draw: st.DrawFn) -> Tables:
    """Random costs without any monotonicity, and a memory limit that every single query fits into."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))  # much faster than drawing a list of numbers
    costs = {name: random.integers(1, 30, LONGEST * MOST).tolist() for name in ("shared", *KINDS)}
    profile = make_profile(
        lambda length, n: costs["shared"][(length - 1) * MOST + n - 1],
        {kind: lambda length, n, kind=kind: costs[kind][(length - 1) * MOST + n - 1] for kind in KINDS},  # type: ignore[misc]
        longest=LONGEST,
        most=MOST,
        packed=draw(st.booleans()),
    )
    return profile.tables(max_batch=draw(st.integers(1, MOST)), memory_bytes=draw(st.integers(LONGEST, 20)))


@st.composite
def any_pool(draw: st.DrawFn, most: int = 7, kinds: int = 3) -> Pool:
    """Queries of three tasks, each of one kind; the last kind is not in the profile."""
    count = draw(st.integers(0, most))
    of_task = draw(st.lists(st.integers(0, kinds - 1), min_size=3, max_size=3))
    tasks = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.intp)
    lengths = np.array(draw(st.lists(st.integers(1, LONGEST), min_size=count, max_size=count)), np.intp)
    return Pool(lengths, tasks, np.array(of_task, np.intp)[tasks])
