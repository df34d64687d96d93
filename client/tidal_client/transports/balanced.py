"""Blocking calls to several servers: each goes to the least busy one, and to another one if that cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

from tidal_client.balance import Sent
from tidal_client.codec import InferRequest
from tidal_client.errors import Cancelled, RequestError
from tidal_client.results import Array, ModelMetadata
from tidal_client.retrying import Attempts, with_retries
from tidal_client.transports import Transport
from tidal_client.transports.routes import CLOSED, Route, Routes, any_ready, fewest_rows, part_timeout_s

T = TypeVar("T")


class BalancedTransport:
    """A `Transport` to several servers, which retries by itself.

    Args:
        transports: Transport of each server.
        retries: Maximum number of retries of a call.
        restored: Called when a server that could not be reached answers again.
    """

    def __init__(self, transports: Sequence[Transport], retries: int, restored: Callable[[], None]) -> None:
        self._transports, self._retries = transports, retries
        self._routes = Routes(len(transports), retries, restored)
        self._closed = False

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """See `Transport.infer`."""
        route = self._routes.request(request, timeout_s)
        tries = route.tries
        return self._run(route, lambda transport: transport.infer(tries.request(request), tries.left_s))

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """See `Transport.stream`."""
        route = self._routes.request(request, timeout_s)
        while True:
            sent, begun = self._begin(route), False
            try:
                transport, limit_s = self._transports[sent.address], part_timeout_s(request, timeout_s, route.tries)
                with closing(transport.stream(route.tries.request(request), limit_s)) as parts:
                    for part in parts:
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
            time.sleep(pause_s)

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """Whether one of the servers is ready; see `Transport.ready`."""
        return any_ready(self._ask_each(model, timeout_s, lambda each, left_s: each.ready(model, left_s), until=True))

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """See `Transport.metadata`."""
        route = self._routes.call(model, timeout_s)
        return self._run(route, lambda transport: transport.metadata(model, route.tries.left_s))

    def max_rows(self, model: str, timeout_s: float) -> int:
        """Return the maximum number of rows that each of the servers accepts; see `Transport.max_rows`."""
        tries = Attempts(self._retries, timeout_s)

        def ask() -> int:
            return fewest_rows(
                self._ask_each(model, tries.left_s, lambda each, left_s: each.max_rows(model, left_s), skip_out=True)
            )

        return with_retries(tries, ask)

    def close(self) -> None:
        """Close the connections to all servers."""
        self._closed = True
        for transport in self._transports:
            transport.close()

    def _begin(self, route: Route) -> Sent:
        if self._closed:
            raise Cancelled(CLOSED)
        return route.begin()

    def _run(self, route: Route, send: Callable[[Transport], T]) -> T:
        while True:
            sent = self._begin(route)
            try:
                answer = send(self._transports[sent.address])
                self._routes.answered(sent)
                return answer
            except RequestError as error:
                pause_s = route.pause_s(sent, error)
            finally:
                self._routes.ended(sent)
            time.sleep(pause_s)

    def _ask_each(
        self,
        model: str | None,
        timeout_s: float,
        ask: Callable[[Transport, float], T],
        *,
        until: T | None = None,
        skip_out: bool = False,
    ) -> list[T | RequestError]:
        """Try the servers in turn, each within its share of the remaining time.

        Args:
            model: Model to ask for; None: the server as a whole.
            timeout_s: Timeout of all together, in seconds.
            ask: Asks a server within a timeout.
            until: Answer after which no further server is asked.
            skip_out: See `Routes.survey`.

        Returns:
            Answer or error of each server that was asked.
        """
        addresses, end = self._routes.survey(model, skip_out=skip_out), time.monotonic() + timeout_s
        found: list[T | RequestError] = []
        for number, address in enumerate(addresses):
            sent = self._routes.send(address, model)
            try:
                left_s = max(0.001, (end - time.monotonic()) / (len(addresses) - number))
                answer = ask(self._transports[address], left_s)
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
