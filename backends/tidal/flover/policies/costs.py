"""Durations of prefill and decode passes, as the scheduler estimates them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.profiles import LatencyProfile

Floats = npt.NDArray[np.float64]
# Tokens whose pass takes at most 1.5 times as long as that of one token.
_SMALL_CHUNK = 16
# Weight of the newest pass in the ratio of measured to predicted duration, and the limits of a ratio: a pass that other
# work delayed shows nothing.
_PACE_WEIGHT = 1 / 16
_PACES = 0.5, 2.0
_MOST_DEVIATION = 0.25
# Weight with which a ratio above 1 returns to 1 at each pass of another kind: passes that took long are tried again.
_RETURN_WEIGHT = 1 / 512


class PassCosts(Protocol):
    """Durations of passes in seconds on the serving device; they never decrease with their arguments."""

    def decode_seconds(self, running: int, tokens: int) -> float:
        """Duration of a decode step of `running` sequences, at least 1, that hold `tokens` each, at least 1."""

    def prefill_seconds(self, start: int, end: int) -> float:
        """Duration of prefilling the tokens `start` up to `end` of a prompt in a pass of their own."""

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        """Time that prefilling these tokens adds to an iteration with a decode step.

        Args:
            start: Tokens before the chunk.
            end: Tokens before it and its own.
            rows: Tokens of the iteration besides these, decoded or prefilled.
        """


class Pace:
    """Recent ratio of measured to predicted durations of one kind of pass.

    Attributes:
        ratio: The ratio.
        deviation: Mean distance of the ratios of single passes from it.
    """

    def __init__(self) -> None:
        self.ratio, self.deviation = 1.0, 0.0

    def observe(self, seconds: float, predicted: float) -> None:
        """Record a pass.

        Args:
            seconds: Its duration.
            predicted: Duration that was predicted with the ratio so far.
        """
        least, most = _PACES
        apart = min(max(seconds * self.ratio / predicted, least), most) - self.ratio
        self.deviation += (min(abs(apart), _MOST_DEVIATION) - self.deviation) * _PACE_WEIGHT
        self.ratio += apart * _PACE_WEIGHT

    def relax(self) -> None:
        """Record a pass of another kind."""
        if self.ratio > 1.0:
            self.ratio += (1.0 - self.ratio) * _RETURN_WEIGHT


class ProfiledCosts:
    """Costs measured by the build.

    A chunk costs what was measured for its length at its position in the prompt; a larger one than
    was measured costs as much as its parts.

    Args:
        decode: Durations of decode steps by attended tokens (as lengths) and sequences (as batches).
        chunk: Durations of chunks of a prompt by position of their first token, from 1 (as lengths), and number of
            tokens (as batches).
        mixed: Whether chunks and the decode step share one pass, which pays the duration of a one-token pass once.
    """

    def __init__(self, decode: LatencyProfile, chunk: LatencyProfile, *, mixed: bool = False) -> None:
        steps = np.maximum.accumulate(np.maximum.accumulate(decode.table_ms[1:, 1:] / 1e3, axis=0), axis=1)
        self._decode, self._longest, self._most = steps, decode.max_length, decode.max_batch
        self._tokens = (0, *chunk.batches)
        self._starts = max(decode.max_length, chunk.max_length)
        # Seconds by measured number of tokens and by start: never falling with either.
        behind = np.arange(self._starts, dtype=np.float64)
        table = [np.zeros(self._starts)]
        for number in range(len(chunk.batches)):
            known = [row[number] / 1e3 for row in chunk.median_ms if number < len(row)]
            starts = [start - 1 for start in chunk.lengths[: len(known)]]
            table.append(np.maximum(np.maximum.accumulate(_extended(behind, starts, known)), table[-1]))
        self._seconds: list[list[float]] = [each.tolist() for each in table]
        self._mixed = mixed

    def decode_seconds(self, running: int, tokens: int) -> float:
        """See `PassCosts`."""
        return float(self._decode[min(tokens, self._longest) - 1, min(running, self._most) - 1])

    def prefill_seconds(self, start: int, end: int) -> float:
        """See `PassCosts`."""
        most, total = self._tokens[-1], 0.0
        while end - start > most:
            total += self._measured(start, most)
            start += most
        return total + self._measured(start, end - start)

    def chunk_seconds(self, start: int, end: int, rows: int = 0) -> float:
        """See `PassCosts`; at least the average cost per token."""
        alone, tokens = self.prefill_seconds(start, end), end - start
        if not self._mixed:
            return alone
        # More rows of the same pass, and the tokens before the chunk.
        added = self._pass_seconds(rows + tokens) - self._pass_seconds(max(rows, 1))
        behind = alone - self.prefill_seconds(0, tokens)
        return max(added + behind, alone * tokens / (tokens + _SMALL_CHUNK))

    def _pass_seconds(self, rows: int) -> float:
        """Duration of a pass of some rows behind no tokens, continued beyond the measured ones by their last slope."""
        most = self._tokens[-1]
        if rows <= most or len(self._tokens) < 3:
            return self.prefill_seconds(0, rows)
        last, before = self._seconds[-1][0], self._seconds[-2][0]
        return last + (last - before) * (rows - most) / (most - self._tokens[-2])

    def _measured(self, start: int, tokens: int) -> float:
        """Duration of a chunk that is not larger than the measured ones, interpolated."""
        column, number = min(start, self._starts - 1), bisect.bisect_left(self._tokens, tokens)
        upper = self._seconds[number][column]
        if number < 2:  # nothing, or a single token
            return upper
        lower, width = self._seconds[number - 1][column], self._tokens[number] - self._tokens[number - 1]
        return lower + (upper - lower) * (tokens - self._tokens[number - 1]) / width


def _extended(at: Floats, known: Sequence[int], values: Sequence[float]) -> Floats:
    """Values interpolated between known points, and continued beyond the last by the slope of all."""
    slope = (values[-1] - values[0]) / (known[-1] - known[0]) if len(known) > 1 else 0.0
    found: Floats = np.interp(at, known, values) + np.maximum(at - known[-1], 0) * max(slope, 0.0)
    return found
