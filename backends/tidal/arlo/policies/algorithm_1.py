"""The choice of a runtime for an arriving request (Arlo, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class LoadedInstance(Protocol):
    """An instance with outstanding requests."""

    @property
    def load(self) -> int:
        """Outstanding requests."""


class DispatchLevel(Protocol):
    """The instances of one runtime, as Algorithm 1 needs them."""

    @property
    def capacity(self) -> int:
        """Queries that one instance finishes within the SLO (CY in Figure 4)."""

    def head(self) -> LoadedInstance:
        """Return the least loaded instance."""


_Level = TypeVar("_Level", bound=DispatchLevel)


def choose_level(candidates: Sequence[_Level], threshold: float, decay: float) -> _Level:
    """Return the level whose head instance receives an arriving request (Arlo, Algorithm 1, lines 6-20).

    Args:
        candidates: First L levels that fit the request (Q_e), ascending by max_length, each with instances.
        threshold: Congestion below which the first candidate is selected (λ).
        decay: Factor on the threshold for each longer runtime (α), which makes demotion conservative.
    """
    for level in candidates:
        congestion = level.head().load / level.capacity  # lines 7 to 9: P = N / C
        if congestion < threshold:  # line 10
            return level
        threshold *= decay  # line 15
    return candidates[0]  # lines 18 to 20
