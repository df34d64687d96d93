"""The `flover` service: reads requests, runs iterations of prompts and fused steps, and streams what comes of them."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import cast

from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.flover.fusion import Fusion
from tidal.flover.metrics import FloverMetrics, Outcome
from tidal.flover.policies import Chunk, FloverScheduler, Iteration
from tidal.flover.reading import Reader
from tidal.flover.responder import Responder
from tidal.flover.sampling import UNDEFINED, choose
from tidal.flover.sampling.choose import FloatArray
from tidal.flover.streams import OUTPUTS, Stream
from tidal.requests import PendingRequest, StreamedRequest
from tidal.service import ServiceContext

_LEAVING = "the model stops serving here; send the request again"
# So often open requests are told that they are worked on: more often than any `answer_timeout_s` that makes sense.
_PROGRESS_S = 0.2
# Memory is looked through when nothing came for so long: it takes up to a second where there is much of it.
_IDLE_S = 5.0


class FloverService:
    """A thread that reads requests (T_F of Flover §V-A), one that generates (T_I), and one that answers.

    The generating thread makes one iteration after the other as the scheduler says: chunks of prompts, then a step of
    all that run. A generation that ends, by its last token or because its client has gone, frees its slot before the
    next iteration.

    Args:
        context: what the service is started with.
        reader: of requests.
        scheduler: decides on iterations; the service's own from now on.
        fusion: makes them; the service's own from now on.
        eos: tokens that end a generation.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not give.
    """

    def __init__(
        self,
        context: ServiceContext,
        reader: Reader,
        scheduler: FloverScheduler,
        fusion: Fusion,
        eos: frozenset[int],
    ) -> None:
        context.check_outputs(OUTPUTS)
        self._log = context.log
        self._reader = reader
        self._scheduler = scheduler
        self._fusion = fusion
        self._eos = eos
        self._metrics = FloverMetrics(context.metrics)
        self._changed = threading.Condition()
        self._arrived: deque[Stream] = deque()
        self._closing = False  # nothing more is taken
        self._draining = False  # nothing more comes
        self._ended = False  # nothing is run any more
        self._stepped_at: float | None = None  # the last step, where no other iteration came after it
        self._told_at = 0.0
        self._requests: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._responder = Responder()
        self._threads = [
            context.start_thread("reader", self._read_all),
            context.start_thread("runner", self._work),
            context.start_thread("responder", self._responder.run),
        ]

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Hand requests to the thread that reads them; does not wait."""
        with self._changed:
            taken = not self._closing
            for request in requests if taken else ():
                self._requests.put(request)
        for request in requests if not taken else ():
            request.fail(Unavailable(_LEAVING))

    def close(self, timeout_s: float) -> None:
        """Finish what waits and runs, then end the threads; what is left after `timeout_s` stays unanswered."""
        until = time.monotonic() + timeout_s
        reader, runner, responder = self._threads
        with self._changed:
            self._closing = True
            self._requests.put(None)
        reader.join(max(0.0, until - time.monotonic()))
        with self._changed:
            self._draining = True
            self._changed.notify()
        runner.join(max(0.0, until - time.monotonic()))
        self._end()
        self._responder.close()
        responder.join(max(0.0, until - time.monotonic()))

    def _read_all(self) -> None:
        while (request := self._requests.get()) is not None:
            if request.answered:
                continue
            try:
                stream = self._reader.read(cast(StreamedRequest, request))
            except TidalError as error:
                self._metrics.refused.inc()
                request.fail(error)
            except Exception as error:  # one request must not cost the others their service
                request.fail(Internal(f"the request could not be read: {type(error).__name__}: {error}"))
            else:
                with self._changed:
                    self._arrived.append(stream)
                    self._changed.notify()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _work(self) -> None:
        try:
            looked = True  # through memory, since something ran
            while (there := self._wait(None if looked else _IDLE_S)) is not None:
                if there:
                    self._iterate()
                else:
                    self._check()
                looked = not there
        except BaseException:
            # The boundary answers what is outstanding and starts a fresh service.
            self._end()
            raise

    def _wait(self, timeout_s: float | None) -> bool | None:
        """Take in what arrived, and wait for it where nothing is to do.

        Returns:
            Whether something is to do now; False: nothing came for so many seconds; None: nothing is run any more.
        """
        with self._changed:
            while not self._ended:
                while self._arrived:
                    self._scheduler.submit(self._arrived.popleft())
                if not self._scheduler.idle:
                    return True
                if self._draining:
                    return None
                self._show()
                self._stepped_at = None
                if not self._changed.wait(timeout_s):
                    return False
            return None

    def _check(self) -> None:
        """Hold slots and memory to themselves while nobody has one."""
        self._fusion.check_slots()
        broken = self._fusion.check_memory()
        if broken:
            self._metrics.repaired.inc(len(broken))
            self._log.error("slots %s held what is no finite number, and were emptied", broken)

    def _iterate(self) -> None:
        now = time.monotonic()
        for stream in _streams(list(self._scheduler)):
            if stream.withdrawn:
                self._leave(stream, "cancelled", Cancelled("the client cancelled the request"))
            elif stream.request.answered:  # not by us
                self._leave(stream, "late" if now > stream.deadline else "failed")
        decision = self._scheduler.next(now)
        self._refuse(decision, now)
        for stream in _streams(decision.admitted):
            self._fusion.admit(stream)
            self._metrics.admitted(stream, now)
        for chunk in decision.chunks:
            self._read_chunk(chunk)
        if self._fusion.running:
            self._step()
        else:
            self._stepped_at = None
        self._show()
        if now - self._told_at > _PROGRESS_S:
            self._told_at = now
            for stream in _streams(self._scheduler):
                stream.request.progressed(now)
        self._responder.look_after(_streams(self._scheduler))

    def _refuse(self, decision: Iteration, now: float) -> None:
        for stream in _streams(decision.refused):
            waited = (now - stream.arrival) * 1e3
            self._metrics.ended(stream, "late")
            stream.request.fail(
                Unavailable(
                    f"the deadline of {stream.request.options.latency_ms:g} ms cannot be met: "
                    f"{waited:.0f} ms have passed in the queue"
                )
            )

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
            self._take([stream], logits)
            if stream.tokens:
                self._metrics.first(stream)
                if stream.finish is None:
                    self._fusion.join(stream)

    def _step(self) -> None:
        try:
            shuffle = self._fusion.settle()
        except Exception as error:
            self._fail([stream for stream in _streams(self._scheduler) if stream.admitted], error)
            return
        if shuffle is not None:
            self._metrics.shuffled(shuffle)
        began = time.monotonic()
        try:
            step = self._fusion.step()
        except Exception as error:
            self._fail([stream for stream in _streams(self._scheduler) if stream.tokens], error)
            return
        self._take(step.streams, step.logits)
        ended = time.monotonic()
        since = None if self._stepped_at is None else ended - self._stepped_at
        self._metrics.stepped(step, ended - began, since)
        self._stepped_at = ended

    def _take(self, streams: Sequence[Stream], logits: FloatArray) -> None:
        """Give each stream the token that its row of logits says; those that end by it leave."""
        try:
            tokens = choose(logits, [stream.sampler for stream in streams])
        except Exception as error:
            self._fail(streams, error)
            return
        now = time.monotonic()
        for stream, token in zip(streams, tokens.tolist(), strict=True):
            if token == UNDEFINED:
                self._leave(stream, "failed", Internal("the model's logits are no numbers for this text"))
                continue
            try:
                stream.take(token, self._eos, now)
            except Exception as error:  # one text must not cost the others their service
                self._fail([stream], error)
                continue
            if stream.finish is not None:
                self._leave(stream, stream.finish)
                self._responder.send(stream)
            elif stream.news:
                self._responder.send(stream)

    def _fail(self, streams: Iterable[Stream], error: Exception) -> None:
        answer = error if isinstance(error, TidalError) else Internal(f"generating failed: {error}")
        for stream in list(streams):
            self._leave(stream, "failed", answer)

    def _leave(self, stream: Stream, outcome: Outcome, error: TidalError | None = None) -> None:
        """A stream has come to its end: its slot is free."""
        self._scheduler.remove(stream)
        self._fusion.release(stream)
        self._metrics.ended(stream, outcome)
        if error is not None:
            stream.request.fail(error)

    def _show(self) -> None:
        self._metrics.waiting.set(self._scheduler.waiting)
        self._metrics.running.set(self._scheduler.running)
        self._metrics.taken.set(self._fusion.taken)


def _streams(generations: Iterable[object]) -> list[Stream]:
    return cast(list[Stream], list(generations))
