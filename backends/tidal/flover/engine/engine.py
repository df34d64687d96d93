"""Iterations over all generations: admit, prefill, decode, free (Flover §V-C, Algorithm 2)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from logging import Logger

import torch

from tidal.errors import Cancelled, TidalError
from tidal.flover.engine.batches import SlotOwner
from tidal.flover.engine.committing import CommittingRunner
from tidal.flover.engine.next_tokens import some_rows
from tidal.flover.engine.preparation import SlotPreparation
from tidal.flover.engine.records import EngineRecords
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.slots import GenerationSlots
from tidal.flover.engine.speculation import Speculation
from tidal.flover.engine.tokens import append_tokens
from tidal.flover.generation import Generation
from tidal.flover.memory.slots import SlotCopy
from tidal.flover.metrics import FloverMetrics, Outcome
from tidal.flover.policies import FloverScheduler, PrefillChunk
from tidal.flover.responder import Responder
from tidal.serving.endings import failure, missed_in_queue

_NO_DRAFTS: Mapping[Generation, Sequence[int]] = {}

Chunk = PrefillChunk[Generation]


class FloverEngine:
    """Runs generations; one thread calls it.

    A generation that ends, by its last token or because its client left, frees its slots before the next iteration.

    Args:
        scheduler: Scheduler of the iterations; owned by the engine.
        runner: Runner of the passes, which the engine takes over.
        responder: Sender of parts and answers.
        metrics: Metrics of the model.
        log: Logger of the model.
        shuffle: Whether to make running slots contiguous before each pass; otherwise holes are computed until a new
            generation fills them.
        reuse_prefixes: Whether prompts start from a copy of what a slot holds of them.
        speculation: Drafts of running generations; owned by the engine. None: every step gives one token.
    """

    def __init__(
        self, scheduler: FloverScheduler[Generation], runner: SharedRunner, responder: Responder,
        metrics: FloverMetrics, log: Logger, *, shuffle: bool, reuse_prefixes: bool,
        speculation: Speculation | None = None,
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self._slots = GenerationSlots(runner.slots, reuse=reuse_prefixes)
        self._runner = CommittingRunner(runner, self._slots)
        self._preparation = SlotPreparation(self._runner, self._slots)
        scheduler.prefixes = self._slots
        self._responder = responder
        self._metrics = metrics
        self._log = log
        self._shuffle = shuffle
        self._speculation = speculation if runner.runs_mixed else None
        drafting = () if self._speculation is None else self._speculation.memory
        self._records = EngineRecords(metrics, scheduler, self._slots, [self._runner.memory, *drafting])

    @property
    def idle(self) -> bool:
        """Whether there is no generation."""
        return self._scheduler.idle

    def add(self, generations: Sequence[Generation]) -> None:
        """Queue the generations of one request."""
        self._scheduler.add(*generations)

    def step(self) -> None:
        """Run one iteration: free what was cancelled, preempt, admit, prefill and decode."""
        now = time.monotonic()
        for generation in list(self._scheduler):
            response = generation.response
            if response.cancelled:
                self._finish(generation, "cancelled", Cancelled("the client cancelled the request"))
            elif response.request.answered:  # by the boundary
                self._finish(generation, "late" if now > generation.deadline else "failed")
        self._metrics.preemptions.inc(len(self._scheduler.preempt(self._slots.free)))
        admission = self._scheduler.admit(now)
        for generation in admission.refused:
            self._refuse(generation, now)
        for generation in admission.admitted:
            self._preparation.allocate(generation)
            self._records.admitted(generation, now)
        chunks, clearing = self._scheduler.prefill(), self._scheduler.clearing
        for failed, error in self._preparation.prepare(clearing, chunks):
            self._fail(failed, error)
        chunks = tuple(chunk for chunk in chunks if chunk.item.admitted)
        if not self._run_mixed(chunks):
            for chunk in chunks:
                self._prefill(chunk)
            self._decode(drafts=clearing is None)
        self._records.set_gauges()
        generations = list(self._scheduler)
        self._records.progressed(generations, now)
        self._responder.iteration_ended(generations)

    def pause(self) -> None:
        """Record that no generation is left, so that the next decode step does not follow the last one."""
        self._records.paused()
        self._records.set_gauges()

    def check(self) -> None:
        """Check the integrity of slot table and cache, while the engine is idle; takes up to a second.

        Raises:
            Internal: The slot table contradicts itself.
        """
        self._slots.check()
        with self._runner.use() as runner:
            repaired = runner.repair()
        if repaired:
            self._slots.forget(repaired)
            self._metrics.repaired.inc(len(repaired))
            self._log.error("cleared slots %s, which held NaN or infinite values", repaired)
        if self._speculation is not None:
            self._metrics.repaired.inc(self._speculation.repair())

    def _refuse(self, generation: Generation, now: float) -> None:
        self._metrics.ended(generation, "late")
        generation.response.generation_ended()
        generation.request.fail(missed_in_queue(generation.request, now))

    def _prefill(self, chunk: Chunk) -> None:
        began = time.monotonic()
        slot, token_ids, start, last = self._slots.prefill_input(chunk)
        try:
            with self._runner.use() as runner:
                logits = runner.prefill(slot, token_ids, start, last=last, task=chunk.item.task)
        except Exception as error:
            self._fail([chunk.item], error)
            return
        chunk.item.prefilled = chunk.end
        self._records.prefilled([chunk], time.monotonic() - began)
        if logits is not None:
            self._start_running(chunk.item, logits[None])

    def _decode(self, *, drafts: bool) -> None:
        if not self._slots.running:
            self._records.paused()
            return
        if not self._compact():
            return
        if drafts and self._speculation is not None and self._check_drafts(self._speculation):
            return
        began = time.monotonic()
        batch = self._slots.window_batch()
        window = batch.window
        try:
            with self._runner.use() as runner:
                logits = runner.decode(window.begin, window.end, batch.token_ids, batch.positions, batch.tasks)
        except Exception as error:
            self._fail(self._slots.running_generations, error)
            return
        if batch.rows is not None:
            logits = some_rows(logits, batch.rows)
        self._append(batch.owners, logits)
        seconds = self._records.decoded(batch.owners, len(window), began)
        if self._speculation is not None:
            self._speculation.passed(seconds)

    def _check_drafts(self, speculation: Speculation) -> bool:
        """Decode the running slots and check drafts of their next tokens in one pass; False if nothing was run."""
        if not speculation.due():
            return False
        began = time.monotonic()
        drafts = speculation.select(self._slots.running_generations, self._scheduler.fits_drafts)
        self._metrics.drafting.inc(drafting := time.monotonic() - began)
        if not drafts:
            return False
        batch = self._slots.draft_batch(drafts)
        try:
            with self._runner.use() as runner:
                logits, _ = runner.mixed(batch.slots, batch.token_ids, batch.positions, ())
        except Exception as error:
            self._log.warning("a pass with drafts failed; its decode step runs without them: %s", error)
            speculation.drop()
            return False
        self._append(batch.owners, logits, drafts)
        seconds = self._records.decoded(batch.owners, len(batch.owners), began, drafts=True)
        self._metrics.drafted(speculation.passed(seconds - drafting))
        return True

    def _run_mixed(self, chunks: Sequence[Chunk]) -> bool:
        """Prefill several chunks, or chunks and a decode step, in one pass.

        Returns:
            False if nothing was run: the iteration has a single pass or a task, or the pass failed. Separate passes
            then show which generation fails.
        """
        if not self._can_mix(chunks):
            return False
        if not self._compact():
            return True
        began = time.monotonic()
        batch = self._slots.row_batch()
        inputs = [self._slots.prefill_input(chunk) for chunk in chunks]
        try:
            with self._runner.use() as runner:
                decoded, ended = runner.mixed(batch.slots, batch.token_ids, batch.positions, inputs)
        except Exception as error:
            self._log.warning("a mixed pass failed; its prompts and decode step run in separate passes: %s", error)
            return False
        for chunk in chunks:
            chunk.item.prefilled = chunk.end
        self._records.prefilled(chunks, time.monotonic() - began, beside=len(batch.owners))
        if batch.owners:
            self._append(batch.owners, decoded)
            self._records.decoded(batch.owners, len(batch.owners), began)
        else:
            self._records.paused()
        for chunk, logits in zip((chunk for chunk in chunks if chunk.last), ended, strict=True):
            self._start_running(chunk.item, logits[None])
        return True

    def _can_mix(self, chunks: Sequence[Chunk]) -> bool:
        if not self._runner.runs_mixed or len(chunks) + bool(self._slots.running) < 2:
            return False
        return all(each.task is None for each in (*(chunk.item for chunk in chunks), *self._slots.running_generations))

    def _compact(self) -> bool:
        """Make the running slots contiguous; False if that failed, and then no generation has slots any more."""
        if not self._shuffle:
            return True
        try:
            moves, held = self._slots.compact()
            if moves:
                with self._runner.use() as runner:
                    self._metrics.shuffled(len(moves), runner.move_slots(moves, held))
        except Exception as error:
            self._fail([generation for generation in self._scheduler if generation.admitted], error)
            self._slots.forget(range(self._slots.count))
            return False
        return True

    def _start_running(self, generation: Generation, logits: torch.Tensor) -> None:
        """Append the token after a generation's prefill; from now on it takes part in decode steps."""
        self._append([SlotOwner(generation, 0)], logits)
        self._records.started(generation)
        if generation.admitted:
            self._slots.activate(generation)

    def _append(
        self, owners: Sequence[SlotOwner], logits: torch.Tensor, drafts: Mapping[Generation, Sequence[int]] = _NO_DRAFTS
    ) -> None:
        """Append the tokens of a pass, see `append_tokens`, and send what is ready, all together."""
        ready: dict[Generation, None] = {}  # sent one by one, the sender would take turns with this loop
        try:
            for generation, error in append_tokens(owners, logits, drafts, self._copy_slots):
                if error is not None:
                    self._fail([generation], error)
                elif generation.finish_reason is not None:
                    self._finish(generation, generation.finish_reason)
                    ready[generation] = None
                elif generation.has_part:
                    ready[generation] = None
        finally:
            if ready:
                self._responder.send(*ready)

    def _copy_slots(self, generation: Generation, copies: Sequence[SlotCopy]) -> None:
        placed = self._slots.slot_copies(generation, copies)
        with self._runner.use() as runner:
            self._metrics.copied(len(placed), runner.copy_slots(placed))

    def _fail(self, generations: Iterable[Generation], error: Exception) -> None:
        for generation in list(generations):
            self._finish(generation, "failed", failure(error, "generating failed"))

    def _finish(self, generation: Generation, outcome: Outcome, error: TidalError | None = None) -> None:
        """Free a generation's slots; an error is the answer to its whole request."""
        admitted, running = generation.admitted, self._slots.running
        self._scheduler.remove(generation)
        self._slots.free(generation, sound=outcome != "failed")
        if self._speculation is not None:
            self._speculation.forget(generation)
        self._records.ended(generation, outcome, running if admitted else None)
        generation.response.generation_ended()
        if error is not None:
            generation.request.fail(error)
