"""Who generates next: prompts are read within bounds, beside steps that all who run take part in (Flover §V-B, V-C)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from tidal.flover.policies.costs import Costs
from tidal.flover.policies.types import Chunk, Generation, Iteration

# A prompt goes before those that came up to so many times their own reading time before it.
_AHEAD = 10.0
# Tokens of a prompt that are read at once at least: fewer take hardly less time.
_LEAST_CHUNK = 16
# And at most, where nobody waits for a step: newcomers and withdrawn requests are looked at in between.
_MOST_CHUNK = 512


class FloverScheduler:
    """Decides what each iteration does. An iteration reads some of the prompts, then makes one step of all that run.

    - **Slots** go to generations by key: arrival plus `_AHEAD` times the time that reading the prompt takes. Prompts
      are read by the same order. So a short prompt does not wait for a long one that is being read, and nobody
      starves: keys do not change, and those of later arrivals grow.
    - **Bound**: beside a step, prompts are read for at most `prefill_share` times the step's time, or one chunk of
      `_LEAST_CHUNK` tokens if that takes longer. So two tokens of a stream are at most 1 + `prefill_share` steps apart,
      by the measured costs, however many prompts wait.
    - **Join**: with its last chunk a generation runs; its first token comes from the chunk, its second from the step of
      the same iteration.
    - **Fairness**: every step gives every running generation one token.

    Args:
        slots: generations that may hold one at the same time.
        costs: of passes.
        prefill_share: see above; above 0.
    """

    def __init__(self, slots: int, costs: Costs, *, prefill_share: float) -> None:
        self._slots = slots
        self._costs = costs
        self._share = prefill_share
        self._waiting: list[Generation] = []  # by key
        self._read: dict[Generation, int] = {}  # tokens read of the prompts of those that do not run yet, by key
        self._running: set[Generation] = set()

    @property
    def waiting(self) -> int:
        """Generations without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Generations that a step is made of."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._read or self._running)

    def __iter__(self) -> Iterator[Generation]:
        """All of them: waiting, being read, running."""
        yield from self._waiting
        yield from self._read
        yield from self._running

    def submit(self, generation: Generation) -> None:
        """Let a generation wait for a slot."""
        bisect.insort(self._waiting, generation, key=self._key)

    def remove(self, generation: Generation) -> None:
        """Forget a generation that has ended, or was given up, wherever it is; its slot can be given away."""
        if generation in self._running:
            self._running.remove(generation)
        elif generation in self._read:
            del self._read[generation]
        else:
            self._waiting.remove(generation)

    def next(self, now: float) -> Iteration:
        """Decide on the next iteration, which is then made; generations whose prompts end in it run from now on.

        Args:
            now: seconds on the clock of arrivals.
        """
        refused = [each for each in self._waiting if self._hopeless(each, now)]
        for each in refused:
            self._waiting.remove(each)
        free = self._slots - len(self._read) - len(self._running)
        admitted = self._waiting[:free]
        del self._waiting[:free]
        if admitted:
            self._read = dict(sorted([*self._read.items(), *((each, 0) for each in admitted)], key=self._key_of_item))
        chunks = self._chunks()
        for chunk in chunks:
            if chunk.last:
                del self._read[chunk.generation]
                self._running.add(chunk.generation)
            else:
                self._read[chunk.generation] = chunk.end
        return Iteration(tuple(refused), tuple(admitted), tuple(chunks))

    def _chunks(self) -> list[Chunk]:
        """What is read of the prompts beside the next step, by key within the bound."""
        if not self._read:
            return []
        if not self._running:
            generation, start = next(iter(self._read.items()))
            return [Chunk(generation, start, min(generation.prompt, start + _MOST_CHUNK))]
        left = self._share * self._costs.step_seconds(len(self._running))
        chunks: list[Chunk] = []
        for generation, start in self._read.items():
            end = self._within(generation, start, left)
            if end - start < min(_LEAST_CHUNK, generation.prompt - start):
                if chunks:
                    break
                end = min(generation.prompt, start + _LEAST_CHUNK)
            chunks.append(Chunk(generation, start, end))
            left -= self._costs.prefill_seconds(start, end)
        return chunks

    def _within(self, generation: Generation, start: int, seconds: float) -> int:
        """How far a prompt can be read in some time."""
        ends = range(start + 1, min(generation.prompt, start + _MOST_CHUNK) + 1)
        fits = bisect.bisect_right(ends, seconds, key=lambda end: self._costs.prefill_seconds(start, end))
        return start + fits

    def _hopeless(self, generation: Generation, now: float) -> bool:
        return now + self._costs.prefill_seconds(0, generation.prompt) > generation.deadline

    def _key(self, generation: Generation) -> float:  # by arrival, but for the weight of its prompt
        return generation.arrival + _AHEAD * self._costs.prefill_seconds(0, generation.prompt)

    def _key_of_item(self, item: tuple[Generation, int]) -> float:
        return self._key(item[0])
