"""The lengths that a dynamic runtime pads to, where an engine has to make code for each new shape."""

from __future__ import annotations

# Steps an octave, and the least step in tokens: a query is padded by an eighth of its length at most, but for the
# shortest ones.
_STEPS = 8
_MIN_STEP = 4


def shape_length(length: int, limit: int) -> int:
    """The length that a query of `length` tokens is padded to, in a runtime that takes up to `limit`."""
    step = max(_MIN_STEP, 1 << (length.bit_length() - 1) >> (_STEPS.bit_length() - 1))
    return min(-(-length // step) * step, limit)


def shape_lengths(below: int, limit: int) -> list[int]:
    """Every length that queries of more than `below` and up to `limit` tokens are padded to; 40 for 0 and 512."""
    return sorted({shape_length(length, limit) for length in range(below + 1, limit + 1)})
