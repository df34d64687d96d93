"""The servers behind the gateway: sends each request to one of them, and again where its process died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Final

from tidal_client.errors import DeadlineExceeded, RequestError, Unavailable
from tidal_client.transports.grpc_messages import is_last
from tidal_gateway.errors import Refusal
from tidal_gateway.upstream.calls import Call, Outgoing, ProcessDied
from tidal_gateway.upstream.channel import Metadata
from tidal_gateway.upstream.checked_servers import CheckedServers
from tidal_gateway.upstream.described import UNKNOWN, DescribedModel
from tidal_gateway.upstream.failures import failure_of
from tidal_gateway.upstream.lanes import Lanes
from tidal_gateway.upstream.models import ModelFacts
from tidal_gateway.upstream.policies import Candidate, choose
from tidal_gateway.upstream.retries import Retries
from tidal_gateway.upstream.server import Server

# With a deadline the model answers that it was missed: its answer gets this many seconds more.
_GRACE_S: Final = 1.0
# A model that is missing everywhere may have been loaded since the last check.
_RECHECK_S: Final = 0.5
_UNTRACED: Final = nullcontext[Metadata | None](None)


class ServerPool:
    """All servers behind the gateway.

    Args:
        servers: ``host:port`` of each gRPC endpoint, with that of the status endpoint or None.
        lanes: Bounds of the outstanding requests of each model.
        retry_ratio: Maximum number of retries per request, apart from the first one after each outage.
    """

    def __init__(self, servers: Sequence[tuple[str, str | None]], lanes: Lanes, retry_ratio: float) -> None:
        self._available = asyncio.Event()
        self._checked_servers = CheckedServers([Server(address, status, self._changed) for address, status in servers])
        self.servers: Sequence[Server] = self._checked_servers.listed
        self.lanes = lanes
        self._retries = Retries(retry_ratio)
        self._choices = 0
        self._checked = self._reports_read = 0.0

    @property
    def retries(self) -> dict[str, int]:
        """Numbers of retries by why they were allowed, and of those that were not."""
        return self._retries.counts

    async def start(self) -> None:
        """Check every server once and keep checking them."""
        await self._checked_servers.start()

    async def replace(self, servers: Sequence[tuple[str, str | None]]) -> None:
        """Use other servers from now on; see `CheckedServers.replace`."""
        await self._checked_servers.replace([self._known(*each) for each in servers])
        self._changed()

    async def close(self) -> None:
        """Stop the checks and close the connections; requests in flight are cancelled."""
        await self._checked_servers.close()
        self.lanes.close()

    def models(self) -> list[ModelFacts]:
        """Models that some server serves, without those that only other models call, by name."""
        found = {name: each for server in self.servers if server.up for name, each in server.models.items()}
        return [found[name] for name in sorted(found) if not found[name].internal]

    def report(self, name: str) -> DescribedModel:
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

    async def model(self, name: str, allows: Callable[[str], bool] = lambda name: True) -> ModelFacts:
        """Return the facts of a model.

        Args:
            name: Name of the model.
            allows: Whether the client may learn of a model, for the error that lists those that there are.

        Raises:
            Refusal: No server has it.
        """
        found = self._find(name)
        if found is None:
            if time.monotonic() - self._checked > _RECHECK_S:
                self._checked = time.monotonic()
                await asyncio.gather(*(server.check() for server in self.servers))
            found = self._find(name)
            expected = [server for server in self.servers if server.expects(name)] if found is None else []
            if expected:
                found = next((each.known[name] for each in expected if name in each.known), None)
                if found is None:
                    raise Refusal(
                        503, f"model '{name}' is being restarted: send the request again", code="unavailable",
                        retry_after_s=1,
                    )  # fmt: skip
        if found is None or found.internal:
            raise self._missing(name, allows)
        return found

    async def infer(self, request: Outgoing) -> Any:
        """Send a request to a model that answers once, and return its `ModelInferResponse`.

        Raises:
            RequestError: The error of the last attempt.
            Refusal: The model has too many outstanding requests.
        """
        with self.lanes.lane(request.model):
            self._retries.began(request.model)
            while True:
                server = await self._queued(request)
                call = server.send(request.model)
                try:
                    with _executed(request, server) as metadata:
                        response = await server.channel.infer(request.message, request.left_s() + _GRACE_S, metadata)
                    server.answered(call)
                    return response
                except asyncio.CancelledError:
                    if call.died is None or _cancelled_by_others():
                        raise
                    self._again(request, server, call, ProcessDied())
                except RequestError as error:
                    self._again(request, server, call, error)
                finally:
                    server.ended(call)

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
            self._retries.began(request.model)
            while True:
                server = await self._queued(request)
                call = server.send(request.model)
                try:
                    with _executed(request, server) as metadata:
                        channel = server.channel
                        async with aclosing(channel.stream(request.message, part_timeout_s, metadata)) as parts:
                            async for part in parts:
                                if not call.begun:
                                    call.begun = True
                                    server.answered(call)
                                # A cancel between two parts would hit whatever the consumer awaits.
                                call.task = None
                                yield part
                                # After the last part the process may die.
                                call.task = None if is_last(part) else asyncio.current_task()
                    return
                except asyncio.CancelledError:
                    if call.died is None or _cancelled_by_others():
                        raise
                    self._again(request, server, call, ProcessDied())
                except RequestError as error:
                    self._again(request, server, call, error)
                finally:
                    server.ended(call)

    def _again(self, request: Outgoing, server: Server, call: Call, error: RequestError | ProcessDied) -> None:
        """Return if the request may be sent again; raise the error if it may not."""
        outage, begun = call.died, True
        if isinstance(error, ProcessDied):
            error = _lost(request.model)
        elif (failure := failure_of(error, request.model)) is not None:
            outage, begun = server.failed(call, failure, str(error)), failure.begun
        elif not isinstance(error, DeadlineExceeded):
            server.answered(call)
        if outage is None:
            raise error
        if call.begun:
            raise _broken_stream()
        if time.monotonic() >= request.deadline or not self._retries.allows(request, outage, begun):
            raise error

    async def _queued(self, request: Outgoing) -> Server:
        if request.trace is None:
            return await self._server(request)
        with request.trace.queued(request.model):
            return await self._server(request)

    async def _server(self, request: Outgoing) -> Server:
        """Choose a server for a request; wait, within its deadline, until one has the model."""
        while True:
            chosen = self._choose(request)
            if chosen is not None:
                if request.retries:
                    request.shorten()
                return chosen
            if not any(each.expects(request.model) for each in self.servers):
                raise self._missing(request.model)
            self._available.clear()
            try:
                async with asyncio.timeout(request.left_s()):
                    await self._available.wait()
            except TimeoutError:
                raise Unavailable(
                    f"model '{request.model}' did not become available on any server in time; send the request again"
                ) from None

    def _choose(self, request: Outgoing) -> Server | None:
        able = [each for each in self.servers if each.serves(request.model)]
        if len(able) < 2:
            return able[0] if able else None
        candidates = [Candidate(each.address, len(each.calls)) for each in able]
        chosen = choose(candidates, self._choices, request.affinity)
        self._choices += 1
        return None if chosen is None else able[candidates.index(chosen)]

    def _missing(self, name: str, allows: Callable[[str], bool] | None = None) -> Refusal:
        """Return the refusal of a request to a model that no server has."""
        shown = f"model '{name[:100]}'"
        down = [each for each in self.servers if not each.up]
        if len(down) == len(self.servers) or any(each.had(name) for each in down):
            reasons = "; ".join(f"{each.address}: {each.reason}" for each in down)
            what = "no server is up" if len(down) == len(self.servers) else f"no server with the {shown} is up"
            return Refusal(503, f"{what}: {reasons}", code="unavailable", retry_after_s=1)
        rest = "GET /v1/models lists those that there are"
        if allows is not None:
            rest = f"available are: {', '.join(each.name for each in self.models() if allows(each.name)) or 'none'}"
        return Refusal(404, f"no server has the {shown}; {rest}", code="model_not_found", param="model")

    def _find(self, name: str) -> ModelFacts | None:
        for server in self.servers:
            if server.up and name in server.models:
                return server.models[name]
        return None

    def _known(self, address: str, status: str | None) -> Server:
        """Return the server with these endpoints, or a new one."""
        same = (each for each in self.servers if (each.address, each.status) == (address, status))
        return next(same, None) or Server(address, status, self._changed)

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


def _lost(model: str) -> RequestError:
    return Unavailable(f"the process of model '{model}' died while it had the request; send the request again")


def _broken_stream() -> RequestError:
    return Unavailable("the process that generated this stream died; the text so far is all: send the request again")
