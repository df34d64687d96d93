"""Engines of several models that share a process's cores: they run by turns, rather than all at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tidal.arlo.model import Array, EncoderModel, TokenRow

# An engine that hangs must not keep the others: after so many seconds they run beside it.
_LONGEST_WAIT_S = 1.0


class Turns:
    """Lets as many engines run as there are cores for their threads; of those that wait, the highest rank goes first.

    Two engines with a thread on each core would share every core, and each would wait at every step for the other.

    Args:
        cores: that the engines' threads run on.
        longest_wait_s: after which an engine runs beside the others.
    """

    def __init__(self, cores: int, longest_wait_s: float = _LONGEST_WAIT_S) -> None:
        self._cores = cores
        self._longest_wait_s = longest_wait_s
        self._changed = threading.Condition()
        self._busy = 0  # threads of engines that run
        self._waiting: Counter[int] = Counter()  # engines by rank

    @contextmanager
    def taken(self, rank: int, threads: int) -> Iterator[None]:
        """Wait for the turn of an engine with some threads, and keep it while the context lasts."""
        with self._changed:
            if not self._free(rank, threads):
                self._waiting[rank] += 1
                self._changed.wait_for(lambda: self._free(rank, threads), self._longest_wait_s)
                self._waiting[rank] -= 1
                self._changed.notify_all()  # beside this one there may be room for another
            self._busy += threads
        try:
            yield
        finally:
            with self._changed:
                self._busy -= threads
                if any(self._waiting.values()):
                    self._changed.notify_all()

    def _free(self, rank: int, threads: int) -> bool:
        if any(count and other > rank for other, count in self._waiting.items()):
            return False
        return not self._busy or self._busy + threads <= self._cores


class InTurn:
    """A model's engines, each of which waits for its turn: a `Runner`.

    Args:
        model: the model.
        turns: of the process.
        rank: of the model in them.
    """

    def __init__(self, model: EncoderModel, turns: Turns, rank: int) -> None:
        self._model = model
        self._turns = turns
        self._rank = rank
        manifest = model.manifest
        profiles = [profile for profile in (manifest.profile, manifest.parallel) if profile is not None]
        self._threads = [profile.threads for profile in profiles for _ in range(profile.concurrency)]  # by lane

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None = None) -> dict[str, Array]:
        """Run rows on an engine when its turn has come; see `Runner`."""
        with self._turns.taken(self._rank, self._threads[lane]):
            return self._model.run(lane, runtime, rows, deadline)
