"""Who generates next: prompts are read within bounds, beside steps that all who run take part in (Flover §V-B, V-C)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

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

    - **Slots** go to generations by key: arrival plus `_AHEAD` times the time that reading the prompt takes, and those
      before it in the same request. Prompts are read by the same order. So a short prompt does not wait for a long one
      that is being read, nor for a request of many that came just before it, and nobody starves: keys do not change,
      and those of later arrivals grow.
    - **Beams** of a prompt get their slots together. Who is first but finds too few free ones keeps them for itself
      until enough others have ended; prompts of a request do not wait for each other. So nobody who holds a slot waits
      for one, and there is no deadlock.
    - **Start**: where nobody runs, up to `_MOST_CHUNK` tokens of the first prompts are read together.
    - **Bound**: beside a step, prompts are read for at most `prefill_share` times the step's time, or one chunk of
      `_LEAST_CHUNK` tokens if that takes longer. So two tokens of a stream are at most 1 + `prefill_share` steps apart,
      by the measured costs, however many prompts wait.
    - **Join**: with its last chunk a generation runs; its first token comes from the chunk, its second from the next
      step: that of the same iteration, or of the next one where chunks and step are one pass.
    - **Fairness**: every step gives every running generation one token.

    Args:
        slots: that there are; no generation takes more.
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
        self._keys: dict[Generation, float] = {}

    @property
    def waiting(self) -> int:
        """Generations without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Generations that a step is made of."""
        return len(self._running)

    @property
    def waiting_slots(self) -> int:
        """Slots that those who wait are going to take."""
        return _slots(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._read or self._running)

    def __iter__(self) -> Iterator[Generation]:
        """All of them: waiting, being read, running."""
        yield from self._waiting
        yield from self._read
        yield from self._running

    def submit(self, *generations: Generation) -> None:
        """Let the prompts of one request wait for slots, in their order."""
        reading = 0.0
        for each in generations:
            reading += self._costs.prefill_seconds(0, each.prompt)
            self._keys[each] = each.arrival + _AHEAD * reading
            bisect.insort(self._waiting, each, key=self._keys.__getitem__)

    def remove(self, generation: Generation) -> None:
        """Forget a generation that has ended, or was given up, wherever it is; its slots can be given away."""
        del self._keys[generation]
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
            del self._keys[each]
        admitted = self._admit()
        if admitted:
            read = [*self._read.items(), *((each, 0) for each in admitted)]
            self._read = dict(sorted(read, key=lambda item: self._keys[item[0]]))
        chunks = self._chunks()
        for chunk in chunks:
            if chunk.last:
                del self._read[chunk.generation]
                self._running.add(chunk.generation)
            else:
                self._read[chunk.generation] = chunk.end
        return Iteration(tuple(refused), tuple(admitted), tuple(chunks))

    def _admit(self) -> list[Generation]:
        """Take those from the queue who get slots now."""
        free = self._slots - _slots(self._read) - _slots(self._running)
        count = 0
        while count < len(self._waiting) and (free := free - self._waiting[count].slots) >= 0:
            count += 1
        admitted = self._waiting[:count]
        del self._waiting[:count]
        return admitted

    def _chunks(self) -> list[Chunk]:
        """What is read of the prompts beside the next step, by key within the bound."""
        if not self._read:
            return []
        chunks: list[Chunk] = []
        if not self._running:
            tokens = _MOST_CHUNK
            for generation, start in self._read.items():
                chunks.append(Chunk(generation, start, min(generation.prompt, start + tokens)))
                tokens -= chunks[-1].end - start
                if not tokens:
                    break
            return chunks
        left = self._share * self._costs.step_seconds(_slots(self._running))
        for generation, start in self._read.items():
            end = self._within(generation, start, left)
            if end - start < min(_LEAST_CHUNK, generation.prompt - start):
                if chunks:
                    break
                end = min(generation.prompt, start + _LEAST_CHUNK)
            chunks.append(Chunk(generation, start, end))
            left -= self._costs.chunk_seconds(start, end)
        return chunks

    def _within(self, generation: Generation, start: int, seconds: float) -> int:
        """How far a prompt can be read in some time."""
        ends = range(start + 1, min(generation.prompt, start + _MOST_CHUNK) + 1)
        fits = bisect.bisect_right(ends, seconds, key=lambda end: self._costs.chunk_seconds(start, end))
        return start + fits

    def _hopeless(self, generation: Generation, now: float) -> bool:
        return now + self._costs.prefill_seconds(0, generation.prompt) > generation.deadline


def _slots(generations: Iterable[Generation]) -> int:
    return sum(each.slots for each in generations)
