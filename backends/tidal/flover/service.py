"""The `flover` service: reads requests, runs iterations of prompts and fused steps, and streams what comes of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from tidal.errors import Cancelled
from tidal.flover.answers import OUTPUTS
from tidal.flover.fusion import Fusion
from tidal.flover.iterations import Iterations
from tidal.flover.metrics import FloverMetrics
from tidal.flover.policies import FloverScheduler, Iteration
from tidal.flover.reading import Reader
from tidal.flover.responder import Responder
from tidal.flover.streams import Stream
from tidal.flover.tasks.adapter import Adapter
from tidal.flover.tasks.library import FloverLibrary
from tidal.requests import PendingRequest, StreamedRequest
from tidal.service import ServiceContext
from tidal.serving.endings import missed_in_queue, model_stops
from tidal.serving.threads import join_until, remaining_s
from tidal.tasks.intake import Intake
from tidal.tasks.lease import Lease

# So often open requests are told that they are worked on: more often than any `answer_timeout_s` that makes sense.
_PROGRESS_S = 0.2
# Memory is looked through when nothing came for so long: it takes up to a second where there is much of it.
_IDLE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Read:
    """A request that was read, and its streams."""

    request: StreamedRequest
    streams: list[Stream]


class FloverService:
    """A thread that reads requests (T_F of Flover §V-A), one that generates (T_I), and one that answers.

    The generating thread makes one iteration after the other as the scheduler says: chunks of prompts, then a step of
    all that run. A generation that ends, by its last token or because its client has gone, frees its slot before the
    next iteration.

    Args:
        context: what the service is started with.
        reader: of requests.
        library: the model's tasks; the service's own from now on.
        scheduler: decides on iterations; the service's own from now on.
        fusion: makes them; the service's own from now on.
        part_wait_s: that a token may wait to be sent with the next.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not give.
    """

    def __init__(
        self,
        context: ServiceContext,
        reader: Reader,
        library: FloverLibrary,
        scheduler: FloverScheduler,
        fusion: Fusion,
        *,
        part_wait_s: float,
    ) -> None:
        context.check_outputs(OUTPUTS)
        self._log = context.log
        self._reader = reader
        self._scheduler = scheduler
        self._fusion = fusion
        self._metrics = FloverMetrics(context.metrics)
        self._changed = threading.Condition()
        self._arrived: deque[list[Stream]] = deque()
        self._draining = False  # nothing more comes
        self._ended = False  # nothing is run any more
        self._told_at = 0.0
        self._responder = Responder(part_wait_s)
        self._iterations = Iterations(scheduler, fusion, self._metrics, self._responder, context.log)
        self._runner = context.start_thread("runner", self._work)
        self._responding = context.start_thread("responder", self._responder.run)
        self._intake = Intake(
            context, library, self._metrics, self._read, self._admit, self._last_admitted, admit_base=self._admit_base
        )

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Hand requests to the thread that reads them; does not wait."""
        if not self._intake.accept(requests):
            for request in requests:
                request.fail(model_stops())

    def close(self, timeout_s: float) -> None:
        """Finish what waits and runs, then end the threads; what is left after `timeout_s` stays unanswered."""
        until = time.monotonic() + timeout_s
        self._intake.stop()
        join_until(until, [self._runner])
        self._end()
        self._responder.close()
        join_until(until, [self._responding])
        self._intake.close(remaining_s(until))

    def _read(self, request: PendingRequest, _task: str) -> _Read:
        asked = cast(StreamedRequest, request)
        return _Read(asked, self._reader.read(asked))

    def _admit(self, read: _Read, lease: Lease[Adapter] | None) -> bool:
        with self._changed:
            if self._ended:
                return False
            read.streams[0].answer.task = lease
            self._arrived.append(read.streams)
            self._changed.notify()
        return True

    def _admit_base(self, request: PendingRequest) -> bool:
        return self._admit(self._read(request, ""), None)

    def _last_admitted(self) -> None:
        with self._changed:
            self._draining = True
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
                    self._scheduler.submit(*self._arrived.popleft())
                if not self._scheduler.idle:
                    return True
                if self._draining:
                    return None
                self._show()
                self._iterations.paused()
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
            if stream.answer.withdrawn:
                self._iterations.leave(stream, "cancelled", Cancelled("the client cancelled the request"))
            elif stream.request.answered:  # not by us
                self._iterations.leave(stream, "late" if now > stream.deadline else "failed")
        decision = self._scheduler.next(now)
        self._refuse(decision, now)
        for stream in _streams(decision.admitted):
            self._fusion.admit(stream)
            self._metrics.admitted(stream, now)
            if stream.request.record is not None:
                stream.request.record.ran(now, now)
        self._iterations.make(decision.chunks)
        self._show()
        if now - self._told_at > _PROGRESS_S:
            self._told_at = now
            for stream in _streams(self._scheduler):
                stream.request.progressed(now)
        self._responder.look_after(_streams(self._scheduler))

    def _refuse(self, decision: Iteration, now: float) -> None:
        for stream in _streams(decision.refused):
            self._metrics.ended(stream, "late")
            stream.answer.leave()
            stream.request.fail(missed_in_queue(stream.request, now))

    def _show(self) -> None:
        self._metrics.waiting.set(self._scheduler.waiting)
        self._metrics.waiting_slots.set(self._scheduler.waiting_slots)
        self._metrics.running.set(self._scheduler.running)
        self._metrics.running_slots.set(self._fusion.running)
        self._metrics.taken.set(self._fusion.taken)


def _streams(generations: Iterable[object]) -> list[Stream]:
    return cast(list[Stream], list(generations))
