"""Requests of a measurement, and the times of their tokens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        prompt: Token ids of the prompt.
        tokens: Number of tokens to generate.
        at: Arrival in seconds since the start.
    """

    prompt: Sequence[int]
    tokens: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the tokens of requests were generated.

    Attributes:
        at: Arrival of each request in seconds since the start.
        times: Seconds since the start of each token, by request.
        first_tokens: First token of each request.
        cache: Largest used share of the memory of keys and values; 0 if it is not known.
    """

    at: list[float]
    times: list[list[float]]
    first_tokens: list[int]
    cache: float = 0.0

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Self:
        """Read what `kept` returned."""
        return cls(**kept)

    def kept(self) -> dict[str, Any]:
        """Return the content of the JSON."""
        return asdict(self)

    @property
    def seconds(self) -> float:
        """Seconds until the last token."""
        return max(times[-1] for times in self.times if times)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second until the last one."""
        return sum(map(len, self.times)) / self.seconds

    def first_token_s(self) -> list[float]:
        """Seconds from the arrival of each request until its first token."""
        return [times[0] - at for times, at in zip(self.times, self.at, strict=True)]

    def latency_s(self) -> list[float]:
        """Seconds from the arrival of each request until its last token."""
        return [times[-1] - at for times, at in zip(self.times, self.at, strict=True)]

    def gaps(self, stream: int, begin: float, end: float) -> list[float]:
        """Gaps between the tokens of a request that overlap the time from `begin` to `end`.

        The gap that `end` lies in counts until its next token, or, if that was not waited for, until `end`.
        """
        times = self.times[stream]
        if times[-1] < end:
            times = [*times, end]
        return [later - before for before, later in itertools.pairwise(times) if later > begin and before < end]


class Side(Protocol):
    """What generates: Tidal or a peer, with its settings."""

    def run(self, requests: Sequence[Request], until: int | None = None) -> Timeline:
        """Generate for requests in the order of their arrival.

        Args:
            requests: The requests.
            until: Request with whose last token the run ends, whatever others still generate; None: with all.
        """
