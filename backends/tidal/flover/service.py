"""The `flover` service: threads that parse requests, run the engine, compute masks, and send what is generated."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tidal.errors import TidalError
from tidal.flover.engine.engine import FloverEngine
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.speculation import Speculation
from tidal.flover.generation import Generation
from tidal.flover.metrics import FloverMetrics
from tidal.flover.policies import FloverScheduler
from tidal.flover.request_parser import RequestParser
from tidal.flover.responder import Responder
from tidal.flover.responses import OUTPUTS
from tidal.flover.tasks.adapter import LoraAdapter
from tidal.flover.tasks.library import FloverLibrary
from tidal.requests import PendingRequest, StreamedRequest
from tidal.service import ServiceContext
from tidal.serving.endings import model_stops
from tidal.serving.threads import join_until, remaining_s
from tidal.tasks.intake import Intake, read_each
from tidal.tasks.lease import Lease

# Idle time after which the cache is checked: a check takes up to a second of a large cache.
_IDLE_CHECK_S = 5.0


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request with its generations, one per prompt."""

    request: StreamedRequest
    generations: list[Generation]


class FloverService:
    """One thread parses requests (T_F of Flover §V-A), one runs the engine (T_I), one sends responses, one computes
    the masks of guided output.

    Args:
        context: Context that the service is started with.
        parser: Parser of requests.
        library: Tasks of the model; owned by the service from now on.
        scheduler: Scheduler of the engine; owned by the service from now on.
        runner: Runner of the version, which the service takes over.
        shuffle: Whether running slots are kept contiguous.
        reuse_prefixes: Whether prompts start from what a slot holds of them.
        speculation: Drafts of running generations; owned by the service from now on. None: no drafts.
        max_delay_s: Longest time in seconds that a token is delayed to be sent with later ones.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not have.
    """

    def __init__(
        self, context: ServiceContext, parser: RequestParser, library: FloverLibrary,
        scheduler: FloverScheduler[Generation], runner: SharedRunner, *, shuffle: bool, reuse_prefixes: bool,
        speculation: Speculation | None, max_delay_s: float,
    ) -> None:  # fmt: skip
        context.check_outputs(OUTPUTS)
        self._parser = parser
        self._changed = threading.Condition()
        self._arrived: deque[list[Generation]] = deque()
        self._draining = False  # no more requests will arrive
        self._stopped = False  # the engine will not run again
        metrics = FloverMetrics(context.metrics)
        self._responder = Responder(max_delay_s)
        self._engine = FloverEngine(
            scheduler, runner, self._responder, metrics, context.log, shuffle=shuffle, reuse_prefixes=reuse_prefixes,
            speculation=speculation,
        )  # fmt: skip
        self._engine_thread = context.start_thread("runner", self._run)
        self._responder_thread = context.start_thread("responder", self._responder.run)
        self._masks_thread = context.start_thread("masks", parser.masks.run)
        self._intake = Intake(
            context, library, metrics, read_each(self._parse), self._queue, self._drain, readers=1, base=True
        )

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Hand requests to the thread that parses them; does not block."""
        if not self._intake.accept(requests):
            for request in requests:
                request.fail(model_stops())

    def close(self, timeout_s: float) -> None:
        """Finish all waiting and running generations, then end the threads.

        Args:
            timeout_s: Maximum time in seconds; generations that still run then are not answered.
        """
        until = time.monotonic() + timeout_s
        self._intake.stop()
        join_until(until, [self._engine_thread])
        self._stop()
        self._responder.close()
        self._parser.masks.close()
        join_until(until, [self._responder_thread, self._masks_thread])
        self._intake.close(remaining_s(until))

    def _parse(self, request: PendingRequest, _task: str | None) -> ParsedRequest:
        streamed = cast(StreamedRequest, request)
        return ParsedRequest(streamed, self._parser.parse(streamed))

    def _queue(self, parsed: Sequence[tuple[ParsedRequest, Lease[LoraAdapter] | None]]) -> list[TidalError | None]:
        with self._changed:
            if self._stopped:
                return [model_stops() for _ in parsed]
            for each, task in parsed:
                each.generations[0].response.task = task
                self._arrived.append(each.generations)
            self._changed.notify()
        return [None] * len(parsed)

    def _drain(self) -> None:
        with self._changed:
            self._draining = True
            self._changed.notify()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        """Run the engine: one iteration after the other, and a check when it has been idle for a while."""
        try:
            checked = True  # since the last iteration
            while (work := self._wait(None if checked else _IDLE_CHECK_S)) is not None:
                if work:
                    self._engine.step()
                else:
                    self._engine.check()
                checked = not work
        except BaseException:
            # The boundary answers open requests and starts a new service.
            self._stop()
            raise

    def _wait(self, timeout_s: float | None) -> bool | None:
        """Queue arrived generations in the engine, and wait for some while it is idle.

        Returns:
            True if the engine has work, False after `timeout_s` without any, None when it is to stop.
        """
        with self._changed:
            while not self._stopped:
                while self._arrived:
                    self._engine.add(self._arrived.popleft())
                if not self._engine.idle:
                    return True
                if self._draining:
                    return None
                self._engine.pause()
                if not self._changed.wait(timeout_s):
                    return False
            return None
