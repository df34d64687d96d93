"""Asyncio variant of `tidal_client.transports.balanced`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from tidal_client.codec import InferRequest
from tidal_client.errors import RequestError
from tidal_client.results import Array, ModelMetadata
from tidal_client.retrying import Attempts, with_retries_async
from tidal_client.transports import AsyncTransport
from tidal_client.transports.routes import Route, Routes, any_ready, fewest_rows, part_timeout_s

T = TypeVar("T")


class AsyncBalancedTransport:
    """An `AsyncTransport` to several servers, which retries by itself; see `BalancedTransport`."""

    def __init__(self, transports: Sequence[AsyncTransport], retries: int, restored: Callable[[], None]) -> None:
        self._transports, self._retries = transports, retries
        self._routes = Routes(len(transports), retries, restored)

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        route = self._routes.request(request, timeout_s)
        tries = route.tries
        return await self._run(route, lambda transport: transport.infer(tries.request(request), tries.left_s))

    async def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """See `Transport.stream`."""
        route = self._routes.request(request, timeout_s)
        while True:
            sent, begun = route.begin(), False
            try:
                transport, limit_s = self._transports[sent.address], part_timeout_s(request, timeout_s, route.tries)
                async with aclosing(transport.stream(route.tries.request(request), limit_s)) as parts:
                    async for part in parts:
                        if not begun:
                            begun = True
                            self._routes.answered(sent)
                        yield part
                return
            except RequestError as error:
                if begun:
                    self._routes.failed(sent, error)
                    raise
                pause_s = route.pause_s(sent, error)
            finally:
                self._routes.ended(sent)
            await asyncio.sleep(pause_s)

    async def ready(self, model: str | None, timeout_s: float) -> bool:
        """Whether one of the servers is ready; see `Transport.ready`."""
        answers = await self._ask_each(model, timeout_s, lambda each, left_s: each.ready(model, left_s), until=True)
        return any_ready(answers)

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        route = self._routes.call(model, timeout_s)
        return await self._run(route, lambda transport: transport.metadata(model, route.tries.left_s))

    async def max_rows(self, model: str, timeout_s: float) -> int:
        """See `BalancedTransport.max_rows`."""
        tries = Attempts(self._retries, timeout_s)

        async def ask() -> int:
            answers = await self._ask_each(
                model, tries.left_s, lambda each, left_s: each.max_rows(model, left_s), skip_out=True
            )
            return fewest_rows(answers)

        return await with_retries_async(tries, ask)

    async def close(self) -> None:
        """Close the connections to all servers."""
        await asyncio.gather(*(transport.close() for transport in self._transports))

    async def _run(self, route: Route, send: Callable[[AsyncTransport], Awaitable[T]]) -> T:
        while True:
            sent = route.begin()
            try:
                answer = await send(self._transports[sent.address])
                self._routes.answered(sent)
                return answer
            except RequestError as error:
                pause_s = route.pause_s(sent, error)
            finally:
                self._routes.ended(sent)
            await asyncio.sleep(pause_s)

    async def _ask_each(
        self,
        model: str | None,
        timeout_s: float,
        ask: Callable[[AsyncTransport, float], Awaitable[T]],
        *,
        until: T | None = None,
        skip_out: bool = False,
    ) -> list[T | RequestError]:
        """Ask one server after another; see `BalancedTransport._ask_each`."""
        addresses, end = self._routes.survey(model, skip_out=skip_out), time.monotonic() + timeout_s
        found: list[T | RequestError] = []
        for number, address in enumerate(addresses):
            sent = self._routes.send(address, model)
            try:
                left_s = max(0.001, (end - time.monotonic()) / (len(addresses) - number))
                answer = await ask(self._transports[address], left_s)
                self._routes.answered(sent)
                found.append(answer)
                if answer == until:
                    break
            except RequestError as error:
                self._routes.failed(sent, error)
                found.append(error)
            finally:
                self._routes.ended(sent)
        return found
