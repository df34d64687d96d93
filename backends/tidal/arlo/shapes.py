"""Padded lengths of dynamic runtimes whose engines compile code for each new shape."""

from __future__ import annotations

# Steps per octave, and the smallest step in tokens: padding is at most an eighth of a query's length, except for the
# shortest queries.
_STEPS = 8
_MIN_STEP = 4


def shape_length(length: int, limit: int) -> int:
    """Return the padded length of a query of `length` tokens in a runtime of up to `limit` tokens."""
    step = max(_MIN_STEP, 1 << (length.bit_length() - 1) >> (_STEPS.bit_length() - 1))
    return min(-(-length // step) * step, limit)


def shape_lengths(below: int, limit: int) -> list[int]:
    """Return all padded lengths of queries of more than `below` and up to `limit` tokens; 40 for 0 and 512."""
    return sorted({shape_length(length, limit) for length in range(below + 1, limit + 1)})
