"""Names of models that are derived from other models' names."""

from __future__ import annotations


def runtime_model(front: str, max_length: int) -> str:
    """Name of the Triton model that runs one runtime of a partitioned model.

    Args:
        front: Name of the partitioned model.
        max_length: Input length of the runtime, in tokens.
    """
    return f"{front}_len{max_length}"
