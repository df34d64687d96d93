"""Durations of prefill and decode passes, as the scheduler estimates them."""

from __future__ import annotations

from typing import Protocol

from tidal.profiles import LatencyProfile

# Tokens whose pass takes at most 1.5 times as long as that of one token.
_SMALL_CHUNK = 16


class PassCosts(Protocol):
    """Durations of passes in seconds on the serving device; they never decrease with their arguments."""

    def decode_seconds(self, running: int) -> float:
        """Duration of a decode step of `running` sequences, at least 1."""

    def prefill_seconds(self, start: int, end: int) -> float:
        """Duration of prefilling the tokens `start` up to `end` of a prompt in a pass of their own."""

    def chunk_seconds(self, start: int, end: int) -> float:
        """Time that prefilling these tokens adds to an iteration with a decode step."""


class ProfiledCosts:
    """Costs measured by the build.

    A decode step is assumed to attend to half of a slot's tokens. The rest of a prompt costs as much as its tokens
    alone, or as much as it adds to the prompt before it, whichever is more.

    Args:
        decode: Durations of decode steps by attended tokens (as lengths) and sequences (as batches).
        prefill: Durations of prefill passes by tokens.
        mixed: Whether chunks and the decode step share one pass, which pays the duration of a one-token pass once.
    """

    def __init__(self, decode: LatencyProfile, prefill: LatencyProfile, *, mixed: bool = False) -> None:
        typical = max(1, decode.max_length // 2)
        self._decode = [decode.latency_ms(typical, 1 + count) / 1e3 for count in range(decode.max_batch)]
        self._prefill = [0.0]
        for tokens in range(1, prefill.max_length + 1):
            self._prefill.append(max(self._prefill[-1], prefill.latency_ms(tokens) / 1e3))
        self._shared = self._prefill[1] if mixed else 0.0

    def decode_seconds(self, running: int) -> float:
        """See `PassCosts`."""
        return self._decode[min(running, len(self._decode)) - 1]

    def prefill_seconds(self, start: int, end: int) -> float:
        """See `PassCosts`; beyond the profile, each token costs the average of the profile's longest prompt."""
        return max(self._prefix_seconds(end - start), self._prefix_seconds(end) - self._prefix_seconds(start))

    def chunk_seconds(self, start: int, end: int) -> float:
        """See `PassCosts`; at least the average cost per token."""
        alone = self.prefill_seconds(start, end)
        return max(alone - self._shared, alone * (end - start) / (end - start + _SMALL_CHUNK))

    def _prefix_seconds(self, tokens: int) -> float:
        longest = len(self._prefill) - 1
        return self._prefill[min(tokens, longest)] * max(1.0, tokens / longest)
