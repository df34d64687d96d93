"""Levels and choices of the kernels that tests go through."""

from __future__ import annotations

from hypothesis import strategies as st

from tidal.compiling import LEVELS
from tidal.errors import InvalidArgument
from tidal.flover.native import library
from tidal.flover.native.tiling import NEVER, PREFETCHES, Tiling

TILINGS = st.builds(
    Tiling,
    prefetch=st.sampled_from(PREFETCHES),
    panel=st.sampled_from([32, 48, 64]),
    tile_rows=st.integers(1, 12),
    byte_rows=st.sampled_from([1, 3, NEVER]),
    matrix_rows=st.sampled_from([1, 5, NEVER]),
    integer_matrix_rows=st.sampled_from([1, 5, NEVER]),
)


def levels() -> list[str]:
    """Return the levels of vector instructions that this processor supports; each is selected once."""
    found = []
    for level in LEVELS:
        try:
            library.choose_kernels(level)
        except InvalidArgument:
            continue
        found.append(level)
    return found
