"""Iterations: chunks of prompts and a step of all that run, and what becomes of the tokens that they give."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from logging import Logger
from typing import cast

from tidal.errors import Internal, TidalError
from tidal.flover.fusion import Fusion, Seat, Step
from tidal.flover.memory.slots import Copy
from tidal.flover.metrics import FloverMetrics, Outcome
from tidal.flover.policies import Chunk, FloverScheduler
from tidal.flover.responder import Responder
from tidal.flover.sampling.choose import FloatArray
from tidal.flover.streams import Stream
from tidal.flover.taking import take


class Iterations:
    """Makes what the scheduler decides on, in the thread that generates.

    Args:
        scheduler: is told of streams that have come to their end.
        fusion: makes passes.
        metrics: of the model.
        responder: sends what came.
        log: of the model.
    """

    def __init__(
        self, scheduler: FloverScheduler, fusion: Fusion, metrics: FloverMetrics, responder: Responder, log: Logger
    ) -> None:
        self._scheduler = scheduler
        self._fusion = fusion
        self._metrics = metrics
        self._responder = responder
        self._log = log
        self._stepped_at: float | None = None  # the last step, where no other iteration came after it

    def make(self, chunks: Sequence[Chunk]) -> None:
        """Read chunks of prompts, and make a step of all that run: in one pass where that can be."""
        if self._read_and_step(chunks):
            return
        for chunk in chunks:
            self._read_chunk(chunk)
        if self._fusion.running:
            self._step()
        else:
            self._stepped_at = None

    def paused(self) -> None:
        """Nothing is to do: the next step does not follow the last one."""
        self._stepped_at = None

    def leave(self, stream: Stream, outcome: Outcome, error: TidalError | None = None) -> None:
        """A stream has come to its end: its slots are free. An error is that of its whole request."""
        self._scheduler.remove(stream)
        admitted = stream.admitted
        self._fusion.release(stream)
        self._metrics.ended(stream, outcome)
        if (record := stream.request.record) is not None and admitted:
            now = time.monotonic()
            record.ran(now, now)
            record.add("generated_tokens", len(stream.tokens) or stream.generated)
        stream.answer.leave()
        if error is not None:
            stream.request.fail(error)

    def _read_chunk(self, chunk: Chunk) -> None:
        """Read a chunk of a prompt; with the last one its generation gets a token, and runs."""
        stream, began = cast(Stream, chunk.generation), time.monotonic()
        try:
            logits = self._fusion.read(chunk, stream)
        except Exception as error:
            self._fail([stream], error)
            return
        self._metrics.read(chunk.end - chunk.start, time.monotonic() - began)
        if logits is not None:
            self._begin(stream, logits)

    def _begin(self, stream: Stream, logits: FloatArray) -> None:
        """A stream's prompt is read: it takes its first token, and runs."""
        self._take([Seat(stream, 0)], logits)
        if stream.generated:
            self._metrics.first(stream)
        if stream.admitted:
            self._fusion.join(stream)

    def _read_and_step(self, chunks: Sequence[Chunk]) -> bool:
        """Read chunks of prompts beside a step, or several chunks, in one pass.

        Returns:
            False: nothing has happened. It is no such iteration, or the pass failed; whose fault that was shows when
            everybody has a pass of his own.
        """
        if not self._fusion.fuses(chunks):
            return False
        if not self._settle():
            return True
        began = time.monotonic()
        try:
            firsts, step = self._fusion.read_and_step(chunks)
        except Exception as error:
            self._log.warning("a pass of prompts and a step failed, each is tried by itself: %s", error)
            return False
        passed = time.monotonic() - began
        tokens = sum(chunk.end - chunk.start for chunk in chunks)
        self._metrics.read(tokens, passed * tokens / (tokens + len(step.seats)))
        if step.seats:
            self._took(step, passed)
        else:
            self._stepped_at = None
        for chunk, logits in zip(chunks, firsts, strict=True):
            if logits is not None:
                self._begin(cast(Stream, chunk.generation), logits)
        return True

    def _settle(self) -> bool:
        """Bring running streams together; False: that failed, and nobody has a slot any more."""
        try:
            shuffle = self._fusion.settle()
        except Exception as error:
            self._fail([stream for stream in self._streams() if stream.admitted], error)
            return False
        if shuffle is not None:
            self._metrics.shuffled(shuffle)
        return True

    def _step(self) -> None:
        if not self._settle():
            return
        began = time.monotonic()
        try:
            step = self._fusion.step()
        except Exception as error:
            self._fail([stream for stream in self._streams() if stream.generated], error)
            return
        self._took(step, time.monotonic() - began)

    def _took(self, step: Step, passed_s: float) -> None:
        """A step's streams take their tokens."""
        began = time.monotonic()
        self._take(step.seats, step.logits)
        ended = time.monotonic()
        since = None if self._stepped_at is None else ended - self._stepped_at
        self._metrics.stepped(step, passed_s + ended - began, since)
        self._stepped_at = ended

    def _take(self, seats: Sequence[Seat], logits: FloatArray) -> None:
        """Give each stream the tokens that its rows of logits say; those that end by it leave."""
        for stream, error in take(seats, logits, self._copy):
            if error is not None:
                self._fail([stream], error)
            elif stream.finish is not None:
                self.leave(stream, stream.finish)
                self._responder.send(stream)
            elif stream.news:
                self._responder.send(stream)

    def _copy(self, stream: Stream, copies: Sequence[Copy]) -> None:
        self._metrics.copied(self._fusion.copy(stream, copies))

    def _fail(self, streams: Iterable[Stream], error: Exception) -> None:
        answer = error if isinstance(error, TidalError) else Internal(f"generating failed: {error}")
        for stream in list(streams):
            self.leave(stream, "failed", answer)

    def _streams(self) -> list[Stream]:
        return [cast(Stream, each) for each in self._scheduler]
