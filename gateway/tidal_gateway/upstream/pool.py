"""The servers behind the gateway: sends each request to one of them, and again where its process died."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidal_client.errors import ConnectionFailed, RequestError, Unavailable
from tidal_gateway.errors import Refusal
from tidal_gateway.upstream.channel import Metadata
from tidal_gateway.upstream.described import UNKNOWN, ModelReport
from tidal_gateway.upstream.lanes import Lanes
from tidal_gateway.upstream.models import ModelFacts
from tidal_gateway.upstream.policies import Candidate, RetryBudget, choose
from tidal_gateway.upstream.server import Call, ProcessDied, Server

if TYPE_CHECKING:
    from tidal_gateway.tracing import RequestTrace

#: Largest number of times that one request is sent: one that ends its process each time must not do so forever.
MAX_ATTEMPTS: Final = 4
#: A model that is missing for longer than this many seconds is not being restarted.
RESTART_S: Final = 60.0
# With a deadline the model answers that it was missed: its answer gets this many seconds more.
_GRACE_S: Final = 1.0
# Triton's messages after the process of a model died; a model that is being loaded again has no version.
_DIED = re.compile(r"Stub process( '[^']*')? is not healthy|has no available versions|is not ready")
# Of these, messages about requests that no process has begun.
_NOT_BEGUN = re.compile(r"has no available versions|is not ready|failed to connect")
# A model that is missing everywhere may have been loaded since the last check.
_RECHECK_S: Final = 0.5
_UNTRACED: Final = nullcontext[Metadata | None](None)


@dataclass(slots=True)
class Outgoing:
    """A request to send.

    Attributes:
        message: The `ModelInferRequest`; a retry replaces its `latency_ms` by the rest.
        deadline: Time of the last attempt's end, by `time.monotonic()`, in seconds.
        affinity: See `choose`.
        retries: Number of retries so far.
        trace: Spans of the client's request; None if it is not traced.
    """

    message: Any
    deadline: float
    affinity: str = ""
    retries: int = 0
    trace: RequestTrace | None = None

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.message.model_name)


class Pool:
    """All servers behind the gateway.

    Args:
        servers: ``host:port`` of each gRPC endpoint, with that of the status endpoint or None.
        lanes: Bounds of the outstanding requests of each model.
        retry_ratio: Largest number of retries per request, apart from first ones after a process died.
    """

    def __init__(self, servers: Sequence[tuple[str, str | None]], lanes: Lanes, *, retry_ratio: float = 0.1) -> None:
        self._available = asyncio.Event()
        self.servers = [Server(address, status, self._changed) for address, status in servers]
        self.lanes = lanes
        self.retries: dict[str, int] = {"died": 0, "budget": 0, "refused": 0}
        self._budget = RetryBudget(retry_ratio)
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._checked = self._reports_read = 0.0
        # Facts of models that served, and when they were last seen: one that is missing may be restarting.
        self._known: dict[str, tuple[ModelFacts, float]] = {}

    async def start(self) -> None:
        """Check every server once and keep checking them."""
        await asyncio.gather(*(server.check() for server in self.servers))
        self._tasks = [asyncio.create_task(server.run()) for server in self.servers]

    async def close(self) -> None:
        """Stop the checks and close the connections; requests in flight are cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.servers))
        self.lanes.close()

    def models(self) -> list[ModelFacts]:
        """Models that some server serves, without those that only other models call, by name."""
        found = {name: each for server in self.servers if server.up for name, each in server.models.items()}
        return [found[name] for name in sorted(found) if not found[name].internal]

    def report(self, name: str) -> ModelReport:
        """What a `tidal serve` reports of a model; nothing is known where no server has a status endpoint."""
        return next((each.reports[name] for each in self.servers if name in each.reports), UNKNOWN)

    async def labels(self, model: str, task: str) -> tuple[str, ...]:
        """Names of the labels of a model or task, in the order of its probabilities; empty if they are not known."""
        found = self.report(model).labels_of(task)
        if not found and time.monotonic() - self._reports_read > _RECHECK_S:  # a task may be new
            self._reports_read = time.monotonic()
            await asyncio.gather(*(each.read_models() for each in self.servers))
            found = self.report(model).labels_of(task)
        return found

    async def model(self, name: str) -> ModelFacts:
        """Return the facts of a model.

        Raises:
            Refusal: No server has it.
        """
        found = self._find(name)
        if found is None:
            if time.monotonic() - self._checked > _RECHECK_S:
                self._checked = time.monotonic()
                await asyncio.gather(*(server.check() for server in self.servers))
            found = self._find(name) or self._recent(name)
        if found is None or found.internal:
            if not any(server.up for server in self.servers):
                reasons = "; ".join(f"{each.address}: {each.reason}" for each in self.servers)
                raise Refusal(503, f"no server is up: {reasons}", code="unavailable", retry_after_s=1)
            names = ", ".join(each.name for each in self.models()) or "none"
            raise Refusal(
                404,
                f"no server has the model '{name[:100]}'; available are: {names}",
                code="model_not_found",
                param="model",
            )
        return found

    async def infer(self, request: Outgoing) -> Any:
        """Send a request to a model that answers once, and return its `ModelInferResponse`.

        Raises:
            RequestError: The error of the last attempt.
            Refusal: The model has too many outstanding requests.
        """
        with self.lanes.lane(request.model):
            while True:
                server = await self._queued(request)
                call = self._sent(server, request)
                try:
                    with _executed(request, server) as metadata:
                        return await server.channel.infer(request.message, self._left_s(request) + _GRACE_S, metadata)
                except asyncio.CancelledError:
                    if not call.died or _cancelled_by_others():
                        raise
                    await self._again(request, server, call, ProcessDied())
                except RequestError as error:
                    await self._again(request, server, call, error)
                finally:
                    server.calls.discard(call)

    async def stream(self, request: Outgoing, part_timeout_s: float) -> AsyncGenerator[Any, None]:
        """Send a request to a model that answers in parts, and yield each `ModelInferResponse`.

        A stream that has begun is not sent again.

        Args:
            request: Request to send.
            part_timeout_s: Longest time between two parts, in seconds.

        Raises:
            RequestError: The error of the last attempt, or of a stream that had begun.
            Refusal: The model has too many outstanding requests.
        """
        with self.lanes.lane(request.model):
            while True:
                server = await self._queued(request)
                call, begun = self._sent(server, request), False
                try:
                    with _executed(request, server) as metadata:
                        channel = server.channel
                        async with aclosing(channel.stream(request.message, part_timeout_s, metadata)) as parts:
                            async for part in parts:
                                begun = call.begun = True
                                # A cancel between two parts would hit whatever the consumer awaits.
                                call.task = None
                                yield part
                                call.task = asyncio.current_task()
                    return
                except asyncio.CancelledError:
                    if not call.died or _cancelled_by_others():
                        raise
                    if begun:
                        raise _broken_stream() from None
                    await self._again(request, server, call, ProcessDied())
                except RequestError as error:
                    if begun:
                        if isinstance(error, ConnectionFailed) or _DIED.search(str(error)):
                            server.process_died(call)
                            raise _broken_stream() from None
                        raise
                    await self._again(request, server, call, error)
                finally:
                    server.calls.discard(call)

    def _sent(self, server: Server, request: Outgoing) -> Call:
        self._budget.sent(time.monotonic())
        call = Call(request.model, server.restarts(request.model), asyncio.current_task())
        server.calls.add(call)
        return call

    async def _again(self, request: Outgoing, server: Server, call: Call, error: Exception) -> None:
        """Return when the request may be sent again; raise the error if it may not."""
        server.calls.discard(call)
        died = isinstance(error, ProcessDied | ConnectionFailed) or _DIED.search(str(error)) is not None
        if isinstance(error, ConnectionFailed):
            server.disconnected(str(error))
        elif died:
            server.process_died(call)
        final = _lost(request.model) if isinstance(error, ProcessDied) else error
        if not died or self._left_s(request) <= 0.002:
            raise final
        if _NOT_BEGUN.search(str(error)):  # the outage of before goes on
            return
        if request.retries + 1 >= MAX_ATTEMPTS:
            raise final
        # The first retry after an observed death of a process is always allowed.
        if request.retries and not self._budget.allow(time.monotonic()):
            self.retries["refused"] += 1
            raise final
        self.retries["budget" if request.retries else "died"] += 1
        request.retries += 1

    async def _queued(self, request: Outgoing) -> Server:
        if request.trace is None:
            return await self._server(request)
        with request.trace.queued(request.model):
            return await self._server(request)

    async def _server(self, request: Outgoing) -> Server:
        """Choose a server for a request; wait, within its deadline, until one has the model."""
        while True:
            able = {each.address: each for each in self.servers if each.serves(request.model)}
            candidates = [Candidate(address, len(each.calls)) for address, each in able.items()]
            chosen = choose(candidates, self._turn, request.affinity)
            if chosen is not None:
                self._turn += 1
                if request.retries:
                    _shorten(request)
                return able[chosen.address]
            self._available.clear()
            try:
                async with asyncio.timeout(self._left_s(request)):
                    await self._available.wait()
            except TimeoutError:
                raise Unavailable(
                    f"model '{request.model}' did not become available on any server in time; send the request again"
                ) from None

    def _left_s(self, request: Outgoing) -> float:
        return max(0.001, request.deadline - time.monotonic())

    def _find(self, name: str) -> ModelFacts | None:
        for server in self.servers:
            if server.up and name in server.models:
                self._known[name] = (server.models[name], time.monotonic())
                return server.models[name]
        return None

    def _recent(self, name: str) -> ModelFacts | None:
        facts, seen = self._known.get(name, (None, 0.0))
        return facts if time.monotonic() - seen < RESTART_S else None

    def _changed(self) -> None:
        self._available.set()


def _executed(request: Outgoing, server: Server) -> AbstractContextManager[Metadata | None]:
    if request.trace is None:
        return _UNTRACED
    return request.trace.executed(server.address, request.model, request.retries, request.message.parameters)


def _cancelled_by_others() -> bool:
    """Undo one cancellation of the current task, and return whether there was another one."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() > 0


def _shorten(request: Outgoing) -> None:
    """Replace the deadline that is sent along by its rest."""
    parameters = request.message.parameters
    if "latency_ms" in parameters:
        parameters["latency_ms"].double_param = max(0.001, (request.deadline - time.monotonic()) * 1e3)


def _lost(model: str) -> RequestError:
    return Unavailable(f"the process of model '{model}' died while it had the request; send the request again")


def _broken_stream() -> RequestError:
    return Unavailable("the process that generated this stream died; the text so far is all: send the request again")
