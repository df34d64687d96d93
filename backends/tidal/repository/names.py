"""Names that one model of a repository derives from another's."""

from __future__ import annotations


def runtime_model(front: str, max_length: int) -> str:
    """Name of the Triton model that runs a front's runtime of `max_length` tokens."""
    return f"{front}_len{max_length}"
