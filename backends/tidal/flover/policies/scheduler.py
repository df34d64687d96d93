"""Scheduler of Flover: prefills prompts within a time bound beside the decode steps (Flover §V-B, §V-C)."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic

from tidal.flover.policies.bound import PrefillBound
from tidal.flover.policies.budget import MemoryBudget
from tidal.flover.policies.costs import PassCosts
from tidal.flover.policies.prefixes import NoPrefixes, Prefixes
from tidal.flover.policies.types import Admission, Clearing, Item, PrefillChunk, Schedulable

# A prompt overtakes prompts that arrived less than this many times its own prefill time before it.
_OVERTAKE_FACTOR = 10.0
# Smallest chunk in tokens where fewer take almost as long, and where they take less than 3 / 4 of the time.
_MIN_CHUNK, _LEAST_CHUNK = 16, 4
# Largest chunk in tokens where nothing runs: new and cancelled requests are handled between chunks.
_MAX_CHUNK = 512
# No prompt joins others that have this many tokens: beyond, a pass takes longer in proportion, and the first ones wait.
_MAX_TOGETHER = 256
# Prompt tokens from which on a start ends.
_START_TOKENS = 1024


class FloverScheduler(Generic[Item]):
    """Decides each iteration: which prompts are prefilled; a decode step of all running generations follows.

    - **Order**: slots are allocated by key: arrival plus `_OVERTAKE_FACTOR` times the prefill time of the prompt and of
      those before it in the same request. Prompts are prefilled in the same order. So a short prompt does not wait for
      a long one, nor for a large request just before it. Nothing starves: keys are fixed, and those of later arrivals
      grow.
    - **Beams** of a prompt get their slots together. The generation at the head of the queue reserves free slots until
      it has enough. No generation waits for a slot while it holds one, so there is no deadlock.
    - **Prefixes**: a prompt starts after the tokens that a slot holds already. It lets an iteration pass if a prompt
      before it computes more than half of its chunk in that iteration.
    - **Start**: while nothing runs, the first prompts are prefilled together, up to `_MAX_CHUNK` tokens. The iterations
      that follow go on so with prompts that end in their iteration, beside the decode steps of those that have just
      started, until `_START_TOKENS` tokens were prefilled: requests that arrive together so get their first tokens
      sooner, for longer gaps between the first tokens of some of them.
    - **Bound**: beside any other decode step, prompts are prefilled for at most `prefill_share` times the step's
      duration, where a step counts as `LEAST_STEP_S` at least, or for one chunk of `_MIN_CHUNK` tokens if that takes
      longer, or of `_LEAST_CHUNK` where these take less than 3 / 4 of that. So two tokens of a generation, after its
      first ones, are at most 1 + `prefill_share` step durations apart, by the costs and what was measured since,
      however many prompts wait. While prompts always wait, a step runs without them now and then, to be measured.
      Memory of slots that the operating system has to clear is cleared in parts within this time, before the first
      chunk; its duration is not known before, so such iterations do not correct the costs.
    - **First token**: a generation runs after its last chunk. Its first token comes from that chunk, its second from
      the decode step of the same iteration, or of the next one where chunks and step share a pass.
    - **Fairness**: every decode step gives every running generation one token.
    - **Memory**: a generation gets slots if the keys and values of all that have some fit into the budget, with another
      page for each of their sequences. Where those of the next step do not fit, generations are preempted, the one with
      the largest key first, never the only one, and wait before all others. Beams reserve the memory of their whole
      search instead, and are not preempted.

    Args:
        slots: Number of slots; no generation takes more.
        costs: Durations of passes.
        prefill_share: Bound on the time of prefill beside a decode step, as a multiple of the step's duration; above 0.
        memory: Budget of keys and values; None: all slots fit. Each generation fits alone.

    Attributes:
        prefixes: Tokens of prompts that need not be computed.
        clearing: Memory to clear in the iteration of the last `prefill`; None: none.
    """

    def __init__(
        self, slots: int, costs: PassCosts, *, prefill_share: float, memory: MemoryBudget | None = None
    ) -> None:
        self.prefixes: Prefixes[Item] = NoPrefixes()
        self.clearing: Clearing[Item] | None = None
        self._slots = slots
        self._costs = costs
        self._bound = PrefillBound(costs, prefill_share)
        self._memory = memory
        self._waiting: list[Item] = []  # preempted ones first, then by key
        self._prefilled: dict[Item, int] = {}  # prompt tokens prefilled of each admitted item, by key
        self._running: dict[Item, None] = {}  # a dict, because a set has another order in each process
        self._start_tokens = 0  # tokens that may still be prefilled before the start ends
        self._keys: dict[Item, float] = {}

    @property
    def waiting(self) -> int:
        """Number of generations without slots."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of generations in the decode step."""
        return len(self._running)

    @property
    def waiting_slots(self) -> int:
        """Number of slots that the waiting generations need."""
        return _slots(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no generation is waiting, prefilled or running."""
        return not (self._waiting or self._prefilled or self._running)

    def __iter__(self) -> Iterator[Item]:
        """All generations: waiting, prefilled, running."""
        yield from self._waiting
        yield from self._prefilled
        yield from self._running

    def add(self, *items: Item) -> None:
        """Queue the prompts of one request, in their order."""
        prefill = 0.0
        for item in items:
            prefill += self._costs.prefill_seconds(0, item.prompt_tokens)
            self._keys[item] = item.arrival + _OVERTAKE_FACTOR * prefill
            bisect.insort(self._waiting, item, key=self._order)

    def remove(self, item: Item) -> None:
        """Remove a generation that is finished or aborted, in any state; its slots become free."""
        del self._keys[item]
        if item in self._running:
            del self._running[item]
        elif item in self._prefilled:
            del self._prefilled[item]
        else:
            self._waiting.remove(item)

    def preempt(self, free: Callable[[Item], None]) -> tuple[Item, ...]:
        """Requeue generations whose memory others need for their next step, and return them.

        Args:
            free: Frees the slots of a generation, before it is requeued.
        """
        preempted = []
        while self._memory is not None and not self._memory.fits(self._admitted()):
            candidates = [item for item in self._admitted() if item.preemptible]
            if not candidates or len(self._prefilled) + len(self._running) == 1:
                break
            item = max(candidates, key=self._keys.__getitem__)
            self._prefilled.pop(item, None)
            self._running.pop(item, None)
            free(item)
            item.preempt()
            bisect.insort(self._waiting, item, key=self._order)
            preempted.append(item)
        return tuple(preempted)

    def admit(self, now: float) -> Admission[Item]:
        """Decide who leaves the queue; the caller allocates the slots before it calls `prefill`.

        Args:
            now: Current time in seconds on the clock of arrivals.
        """
        refused = [item for item in self._waiting if self._misses_deadline(item, now)]
        for item in refused:
            self._waiting.remove(item)
            del self._keys[item]
        admitted = self._admit()
        if admitted:
            prefilled = [*self._prefilled.items(), *((item, 0) for item in admitted)]
            self._prefilled = dict(sorted(prefilled, key=lambda pair: self._keys[pair[0]]))
        return Admission(tuple(refused), tuple(admitted))

    def prefill(self) -> tuple[PrefillChunk[Item], ...]:
        """Decide what the next iteration prefills, at most one chunk per prompt.

        A decode step of all running generations follows; items whose prompts end in a chunk count as running. A chunk
        starts after the end of the prompt's chunk before it if the tokens in between are reused.
        """
        self.clearing = None
        chunks = self._chunks()
        for chunk in chunks:
            chunk.item.uncleared = 0  # by its pass
            if chunk.last:
                del self._prefilled[chunk.item]
                self._running[chunk.item] = None
            else:
                self._prefilled[chunk.item] = chunk.end
        return tuple(chunks)

    def measured(self, seconds: float) -> None:
        """Record the time between the tokens of running generations, from the last decode step to that which follows
        the last `prefill`: prompts beside later steps are bounded by it.
        """
        self._bound.measured(seconds)

    def fits_drafts(self, drafts: Mapping[Item, Sequence[int]]) -> bool:
        """Whether the keys and values of drafted tokens fit beside those of all sequences.

        Args:
            drafts: Drafted tokens by generation.
        """
        return self._memory is None or self._memory.fits_drafts(self._admitted(), drafts)

    def _admit(self) -> list[Item]:
        """Take from the head of the queue while free slots and memory suffice."""
        before, count = self._admitted(), 0
        free = self._slots - _slots(before)
        while count < len(self._waiting) and (free := free - self._waiting[count].slots) >= 0:
            together = [*before, *self._waiting[: count + 1]]
            # The first one fits alone, whether or not another page does.
            if self._memory is not None and len(together) > 1 and not self._memory.fits_growing(together):
                break
            count += 1
        admitted = self._waiting[:count]
        del self._waiting[:count]
        return admitted

    def _admitted(self) -> list[Item]:
        """Generations with slots."""
        return [*self._prefilled, *self._running]

    def _order(self, item: Item) -> tuple[bool, float]:
        """Sort key of the queue."""
        return not item.preempted, self._keys[item]

    def _chunks(self) -> list[PrefillChunk[Item]]:
        """Chunks to prefill in the next iteration, by key."""
        if not self._running:
            self._start_tokens = _START_TOKENS
        self._bound.expect_nothing()
        chunks = self._starting_chunks() if self._start_tokens > 0 else []
        self._start_tokens -= sum(chunk.end - chunk.start for chunk in chunks)
        if not chunks and self._running:
            self._start_tokens = 0
            chunks = self._chunks_beside_step()
        return chunks

    def _starting_chunks(self) -> list[PrefillChunk[Item]]:
        """Chunks of at most `_MAX_CHUNK` tokens together; beside those that have just started, ends of prompts only."""
        chunks: list[PrefillChunk[Item]] = []
        total = 0
        for item, held in self._prefilled.items():
            start = max(held, self.prefixes.reusable(item))
            chunk = PrefillChunk(item, start, min(item.prefill_tokens, start + _MAX_CHUNK - total))
            if self._running and not chunk.last:
                break
            if self._defers(chunk, chunks):
                continue
            chunks.append(chunk)
            total += chunk.end - start
            if total >= _MAX_TOGETHER:
                break
        return chunks

    def _chunks_beside_step(self) -> list[PrefillChunk[Item]]:
        """Chunks within the bound."""
        chunks: list[PrefillChunk[Item]] = []
        rows = running = _slots(self._running)
        # What they have generated since makes a step longer: without it the bound is kept.
        held = sum(item.slots * item.prompt_tokens for item in self._running) // running
        if self._prefilled and self._bound.needs_step:
            self._bound.expect(running, held, 0.0)
            return chunks
        seconds, added = self._bound.seconds(running, held), 0.0
        for item, done in self._prefilled.items():
            if item.uncleared:
                self.clearing = Clearing(item, seconds - added)
                return chunks
            start = max(done, self.prefixes.reusable(item))
            end = self._end_within(item, start, seconds - added, rows)
            if end < (least := self._least_end(item, start, rows)):
                if chunks:
                    break
                end = least
            chunk = PrefillChunk(item, start, end)
            if self._defers(chunk, chunks):
                continue
            chunks.append(chunk)
            added += self._costs.chunk_seconds(start, end, rows)
            rows += end - start
        self._bound.expect(running, held, added)
        return chunks

    def _end_within(self, item: Item, start: int, seconds: float, rows: int) -> int:
        """End of the longest chunk from `start` on that takes at most `seconds` beside `rows` rows."""
        ends = range(start + 1, min(item.prefill_tokens, start + _MAX_CHUNK) + 1)
        fits = bisect.bisect_right(ends, seconds, key=lambda end: self._costs.chunk_seconds(start, end, rows))
        return start + fits

    def _least_end(self, item: Item, start: int, rows: int) -> int:
        """End of the smallest chunk from `start` on beside `rows` rows."""
        usual, few = (self._costs.chunk_seconds(start, start + each, rows) for each in (_MIN_CHUNK, _LEAST_CHUNK))
        return min(item.prefill_tokens, start + (_LEAST_CHUNK if few < 0.75 * usual else _MIN_CHUNK))

    def _defers(self, chunk: PrefillChunk[Item], others: Iterable[PrefillChunk[Item]]) -> bool:
        """Whether the other chunks of an iteration compute more than half of a chunk."""
        most = min(chunk.end, chunk.item.prefill_tokens - 1)
        shared = (min(most, other.end, self.prefixes.shared(chunk.item, other.item)) for other in others)
        return max(shared, default=0) - chunk.start > (chunk.end - chunk.start) / 2

    def _misses_deadline(self, item: Item, now: float) -> bool:
        # One that was preempted has answered in part: its deadline ends it when it passes.
        if item.preempted or now + self._costs.prefill_seconds(0, item.prompt_tokens) <= item.deadline:
            return False
        start = self.prefixes.reusable(item)
        return now + self._costs.prefill_seconds(start, item.prompt_tokens) > item.deadline


def _slots(items: Iterable[Schedulable]) -> int:
    return sum(item.slots for item in items)
