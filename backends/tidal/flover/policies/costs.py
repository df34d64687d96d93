"""What passes cost, as the scheduler asks for it."""

from __future__ import annotations

from typing import Protocol

from tidal.profiles import LatencyProfile

# Tokens that take at most half as long again as one.
_FEW = 16


class Costs(Protocol):
    """Seconds of passes on the device that serves; they never fall with their arguments."""

    def step_seconds(self, running: int) -> float:
        """Of a decoding step of so many sequences, at least 1."""

    def prefill_seconds(self, start: int, end: int) -> float:
        """Of reading tokens `start` up to `end` of a prompt."""

    def chunk_seconds(self, start: int, end: int) -> float:
        """Of reading them beside a step: what this takes longer."""


class ProfiledCosts:
    """Costs as the build measured them.

    A step is taken to attend to half of what a slot holds. Reading the rest of a prompt costs what is measured for its
    tokens alone, or if that is more, the difference that it makes to the prompt.

    Args:
        step: by attended tokens (as lengths) and sequences (as batches).
        prefill: by tokens.
        fused: chunks and a step are one pass: what a pass of one token takes, it takes once. Else each is one.
    """

    def __init__(self, step: LatencyProfile, prefill: LatencyProfile, *, fused: bool = False) -> None:
        typical = max(1, step.max_length // 2)
        self._steps = [step.latency_ms(typical, 1 + count) / 1e3 for count in range(step.max_batch)]
        self._prefills = [0.0]
        for tokens in range(1, prefill.max_length + 1):
            self._prefills.append(max(self._prefills[-1], prefill.latency_ms(tokens) / 1e3))
        self._shared = self._prefills[1] if fused else 0.0

    def step_seconds(self, running: int) -> float:
        """See `Costs`."""
        return self._steps[min(running, len(self._steps)) - 1]

    def prefill_seconds(self, start: int, end: int) -> float:
        """See `Costs`; beyond what was measured as much for each token as on average up to there."""
        return max(self._upto(end - start), self._upto(end) - self._upto(start))

    def chunk_seconds(self, start: int, end: int) -> float:
        """See `Costs`; at least as much for each token as they take on average."""
        alone = self.prefill_seconds(start, end)
        return max(alone - self._shared, alone * (end - start) / (end - start + _FEW))

    def _upto(self, tokens: int) -> float:
        most = len(self._prefills) - 1
        return self._prefills[min(tokens, most)] * max(1.0, tokens / most)
