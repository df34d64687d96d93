"""Sends calls to levels, in this process or on other models of the server, and reports each that ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidal.arlo.embedded import EmbeddedModels
from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.service import ServiceContext
from tidal.serving.endings import cancellation
from tidal.serving.threads import join_until, remaining_s
from tidal.tabi.calls import LevelModels, RetryingLevels, TimedAnswer
from tidal.tabi.jobs import CascadeJob, LevelCall
from tidal.tabi.levels import TaskLevels
from tidal.tabi.local import LocalCall, LocalLevels
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.queues import CallTimer, LevelQueue
from tidal.tabi.router import Router
from tidal.tracing.current import spans_within

# Lost workers, over all levels, that are replaced: their calls never end.
_SPARE_THREADS = 32


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended.

    Attributes:
        call: Call that was sent.
        outcome: Answer of its level, or why there is none.
        ends_request: Whether the error is the request's own, which no level can answer; otherwise the level failed.
        expired: Whether the call took too long.
    """

    call: LevelCall
    outcome: TimedAnswer | TidalError
    ends_request: bool = False
    expired: bool = False


# Receives calls that have ended; those that a level answered together come together.
Ended = Callable[[Sequence[EndedCall]], None]
StartModels = Callable[[Callable[[Sequence[LocalCall]], None]], EmbeddedModels[LevelCall]]


class LevelCalls:
    """Runs calls on levels; each call that `send` does not return ends once, by a report to `ended`.

    A level in this process gets many calls at once, and reports those of a batch together. A level that is a model of
    the server has a queue with workers, each of which waits for one call. A timer ends calls that take too long.

    Args:
        context: Context that the cascade's service is started with.
        manifest: Manifest of the cascade being served.
        levels: Indices of the levels that may be called.
        start_models: Starts the models of the levels that run in this process; its argument receives their calls that
            have ended.
        router: Router that tokenises calls.
        max_in_flight: Maximum number of concurrent calls to models of the server.
        lost_calls: Receives the number of a level and how many calls to it were abandoned and have not ended.
        ended: Receives calls that have ended, on any thread.
    """

    def __init__(
        self,
        context: ServiceContext,
        manifest: TabiManifest,
        levels: Sequence[int],
        start_models: StartModels,
        router: Router,
        *,
        max_in_flight: int,
        lost_calls: Callable[[int, int], None],
        ended: Ended,
    ) -> None:
        self._router = router
        self._ended = ended
        self._stop_retries = threading.Event()
        self._local = LocalLevels(manifest, start_models(self._ended_locally), lost_calls)
        tasks = TaskLevels(context.model_dir.parent, manifest)
        self._models = RetryingLevels(LevelModels(context.call_model, manifest, tasks), self._stop_retries)
        remote = [index for index in levels if index not in self._local]
        slots = max(1, max_in_flight // max(1, len(remote)))
        spare = _SPARE_THREADS // max(1, len(remote))
        self._queues = {
            index: LevelQueue(context, f"level-{index + 1}", slots, spare, self._work, partial(lost_calls, index + 1))
            for index in remote
        }
        self._timer: CallTimer[LevelCall | LocalCall] = CallTimer(context, self._expired)

    def send(self, level: int, calls: Sequence[LevelCall], *, wait: bool) -> list[EndedCall]:
        """Send calls to a level; return those that could not be sent.

        Args:
            level: Index of the level.
            calls: Calls to it.
            wait: Whether this thread may wait for calls to a level of this process, for a bounded time; it reports
                those that end meanwhile.
        """
        if level in self._local:
            return self._send_locally(level, calls, wait=wait)
        sent: list[tuple[float, LevelCall]] = []
        refused: list[EndedCall] = []
        for call in calls:
            if self._queues[level].add(call):
                sent.append((call.expires, call))
            else:
                refused.append(EndedCall(call, Unavailable("calls to it do not end; reload the cascade")))
        self._timer.add(sent)
        return refused

    def close(self, timeout_s: float) -> None:
        """End the threads within `timeout_s` seconds; fail calls that levels of this process have not answered."""
        until = time.monotonic() + timeout_s
        self._stop_retries.set()
        threads = [thread for queue in self._queues.values() for thread in queue.close()]
        self._timer.close(remaining_s(until))
        self._local.close(remaining_s(until))
        join_until(until, threads)

    def _send_locally(self, level: int, calls: Sequence[LevelCall], *, wait: bool) -> list[EndedCall]:
        readable, refused = self._read(level, calls)
        local = [self._local.make(call, attention=self._router.wants_attention(call)) for call in readable]
        if local:
            self._timer.add([(each.owner.expires, each) for each in local])
            self._local.submit(level, local, wait=wait)
        return refused

    def _read(self, level: int, calls: Sequence[LevelCall]) -> tuple[list[LevelCall], list[EndedCall]]:
        """Tokenise calls that are about to run; return those that can run, and the others."""
        wanted: list[LevelCall] = []
        readable: list[LevelCall] = []
        refused: list[EndedCall] = []
        for call in calls:
            needless = _needless(call.job)
            if needless is None:
                wanted.append(call)
            else:
                refused.append(EndedCall(call, needless, ends_request=True))
        for call, fault in zip(wanted, self._router.tokenize(level, wanted), strict=True):
            if fault is None:
                readable.append(call)
            else:
                refused.append(EndedCall(call, fault, ends_request=True))
        return readable, refused

    def _ended_locally(self, calls: Sequence[LocalCall]) -> None:
        ended: list[EndedCall] = []
        for local in calls:
            outcome: TimedAnswer | TidalError
            try:
                outcome = self._local.answer(local) if local.error is None else local.error
            except TidalError as fault:
                outcome = fault
            ended.append(
                EndedCall(
                    local.owner,
                    outcome,
                    ends_request=isinstance(outcome, Cancelled),  # by the client: no level gives this error
                    expired=local.deadline is not None and isinstance(outcome, Unavailable),
                )
            )
        self._ended(ended)

    def _work(self, call: LevelCall) -> None:
        """Run a call, on a worker of its level's queue."""
        ended = self._run(call)
        if self._queues[call.level].finish(call):
            self._ended([ended])

    def _run(self, call: LevelCall) -> EndedCall:
        """Run a call on another model of the server, and wait for its answer."""
        _, refused = self._read(call.level, [call])
        if refused:
            return refused[0]
        attention, has_answer = self._router.wants_attention(call), self._router.may_stop(call.job)
        try:
            with spans_within(call.job.request.record):
                return EndedCall(call, self._models.call(call, attention=attention, has_answer=has_answer))
        except TidalError as error:
            return EndedCall(call, error)
        except Exception as error:
            return EndedCall(call, Internal(f"{type(error).__name__}: {error}"))

    def _expired(self, call: LevelCall | LocalCall) -> None:
        """End a call that takes too long."""
        if isinstance(call, LevelCall):
            owner, abandoned = call, self._queues[call.level].abandon(call)
        else:
            owner, abandoned = call.owner, self._local.abandon(call)
        if abandoned:
            waited_ms = (time.monotonic() - owner.ready) * 1e3
            self._ended([EndedCall(owner, Unavailable(f"no answer within {waited_ms:.0f} ms"), expired=True)])


def _needless(job: CascadeJob) -> Cancelled | None:
    """Return the error for a job whose request was answered or cancelled while it waited, else None."""
    if job.request.answered:
        return Cancelled("the request was answered while it waited")
    return cancellation(job.request, time.monotonic())
