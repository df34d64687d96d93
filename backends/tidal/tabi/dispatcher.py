"""The probabilistic dispatcher: which queries go on to the next level (Tabi §4.1)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt


def reroute_probability(confidence: npt.ArrayLike, cutoff: float, slope: float) -> float | npt.NDArray[np.float64]:
    """The probability that a query goes on to the next level, Eq. 4: P_large(y).

    Args:
        confidence: con(y), calibrated, of any shape.
        cutoff: c; at a confidence up to it, all queries go on.
        slope: k, of the sigmoid above it.

    Returns:
        float64 of the shape of `confidence`, a float for a single one, in [0, 1]; falls where the confidence rises.
    """
    sure = np.asarray(confidence, np.float64)
    normalised = (sure - cutoff) / (1 - cutoff) - 0.5
    with np.errstate(over="ignore"):  # an exponential without bound is a probability of 0
        soft = 1 / (1 + np.exp(slope * normalised))
    chance = np.where(sure > cutoff, soft, 1.0)
    return chance if chance.ndim else float(chance)


def request_key(request_id: str, texts: Sequence[bytes]) -> bytes:
    """What a request's draws are seeded by: its id, or its texts where it has none.

    Args:
        request_id: as the client sent it; empty if it sent none.
        texts: of the query, for a pair both.
    """
    if request_id:
        return b"id" + request_id.encode()
    return b"text" + b"".join(struct.pack("<q", len(text)) + text for text in texts)


def draw(version: int, key: bytes, row: int, level: int) -> float:
    """A number in [0, 1), the same for the same arguments on every machine, evenly spread over different ones.

    Args:
        version: of the cascade.
        key: see `request_key`.
        row: of the query in its request.
        level: index of the level that has answered, among the manifest's levels.
    """
    digest = blake2b(struct.pack("<3q", version, row, level) + key, digest_size=8).digest()
    # As many bits as a float holds: the result is never rounded up to 1.
    return (int.from_bytes(digest, "little") >> 11) / 2**53
