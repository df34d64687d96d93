"""Requests by the second: what every simulated workload yields, recorded or synthetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestsInSecond:
    """The requests that arrive within one second.

    Args:
        start: Start of the second, in seconds from the start of the workload.
        times: Arrival times in seconds from the start of the workload, ascending, float64 [requests].
        lengths: Lengths in tokens, int64 [requests].
    """

    start: float
    times: Floats
    lengths: Ints


class RequestSource(Protocol):
    """A workload that yields the same requests in every iteration."""

    @property
    def seconds(self) -> int:
        """Duration of the arrivals in whole seconds."""

    @property
    def longest(self) -> int:
        """Upper limit of a request's length in tokens."""

    def __iter__(self) -> Iterator[RequestsInSecond]:
        """Iterate over every second, including seconds without requests."""
