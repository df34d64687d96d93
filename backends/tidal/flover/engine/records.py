"""Records of an engine's work: metrics of its steps and generations, its gauges, and entries of requests' traces."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tidal.flover.engine.batches import SlotOwner
from tidal.flover.engine.slots import GenerationSlots
from tidal.flover.generation import Generation
from tidal.flover.metrics import FloverMetrics, Outcome
from tidal.flover.policies import FloverScheduler, PrefillChunk
from tidal.flover.policies.committed import CommittedMemory

# Interval at which open requests are marked as making progress: shorter than any useful `answer_timeout_s`.
_PROGRESS_INTERVAL_S = 0.2


class EngineRecords:
    """Records what an engine does.

    Args:
        metrics: Metrics of the model.
        scheduler: Scheduler of the engine.
        slots: Slots of the engine.
        memories: Memory committed to them, and to those of a draft model.
    """

    def __init__(
        self, metrics: FloverMetrics, scheduler: FloverScheduler[Generation], slots: GenerationSlots,
        memories: Sequence[CommittedMemory],
    ) -> None:  # fmt: skip
        self._metrics = metrics
        self._scheduler = scheduler
        self._slots = slots
        self._memories = memories
        metrics.budget.set(sum(memory.budget for memory in memories))
        self._last_decode_at: float | None = None  # None: the last iteration had no decode step
        self._progress_at = 0.0

    def paused(self) -> None:
        """Record an iteration without a decode step: the next one does not follow the last one."""
        self._last_decode_at = None

    def decoded(self, owners: Sequence[SlotOwner], slots: int, began: float, *, drafts: bool = False) -> float:
        """Record a decode step after its tokens were appended, and return its duration in seconds.

        Args:
            owners: Owners of the running slots.
            slots: Number of slots that were computed, free ones in between included.
            began: `time.monotonic()` seconds at which the step began.
            drafts: Whether it checked drafts, too.
        """
        ended = time.monotonic()
        since_last = None if self._last_decode_at is None else ended - self._last_decode_at
        if since_last is not None and not drafts:
            self._scheduler.measured(since_last)
        generations = len({owner.generation for owner in owners})
        self._metrics.decoded(generations, slots, ended - began, since_last)
        self._last_decode_at = ended
        return ended - began

    def prefilled(self, chunks: Sequence[PrefillChunk[Generation]], seconds: float, beside: int = 0) -> None:
        """Record chunks that were prefilled.

        Args:
            chunks: Chunks of a pass.
            seconds: Duration of the pass.
            beside: Number of tokens that it decoded.
        """
        tokens = sum(chunk.end - chunk.start for chunk in chunks)
        recomputed = sum(chunk.end - chunk.start for chunk in chunks if chunk.item.preempted)
        self._metrics.prefilled(tokens, recomputed, seconds * tokens / (tokens + beside))

    def started(self, generation: Generation) -> None:
        """Record that a generation runs, after its first token since it got slots."""
        if generation.cached_tokens and not generation.recomputed:
            self._metrics.prefix_reused(generation.cached_tokens)
        if generation.generated > generation.recomputed:
            self._metrics.first_token(generation)

    def admitted(self, generation: Generation, now: float) -> None:
        """Record that a generation was given slots for the first time, at a time of `time.monotonic()`."""
        if generation.preempted:
            return
        self._metrics.admitted(generation, now)
        if (record := generation.request.record) is not None:
            record.ran(now, now)

    def ended(self, generation: Generation, outcome: Outcome, running: int | None) -> None:
        """Record the end of a generation.

        Args:
            generation: The generation.
            outcome: Outcome of the generation.
            running: Number of running slots then; None if it never had slots.
        """
        self._metrics.ended(generation, outcome)
        if (record := generation.request.record) is not None and running is not None:
            now = time.monotonic()
            record.ran(now, now, running)
            record.add("generated_tokens", len(generation.tokens) or generation.generated)

    def progressed(self, generations: Sequence[Generation], now: float) -> None:
        """Mark the requests of all generations as making progress, once its time has come."""
        if now - self._progress_at > _PROGRESS_INTERVAL_S:
            self._progress_at = now
            for generation in generations:
                generation.request.progressed(now)

    def set_gauges(self) -> None:
        """Publish the numbers of waiting and running generations, of their slots, and the committed memory."""
        self._metrics.waiting.set(self._scheduler.waiting)
        self._metrics.waiting_slots.set(self._scheduler.waiting_slots)
        self._metrics.running.set(self._scheduler.running)
        self._metrics.running_slots.set(self._slots.running)
        self._metrics.allocated.set(self._slots.allocated)
        self._metrics.committed.set(sum(memory.bytes for memory in self._memories))
