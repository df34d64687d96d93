"""One route as an ASGI application: key, rates, body, answer, and an end to the work when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, aclosing
from typing import Any, Final

import tidal.errors
from tidal_client.errors import RequestError
from tidal_gateway.api.answers import HttpAnswer
from tidal_gateway.api.overload import named_model, refuse_full
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.api.routes import RouteEntry
from tidal_gateway.api.shapes import error_answer, error_event
from tidal_gateway.edge.body import ClientDisconnected, read_body
from tidal_gateway.edge.exchange import ABORT_KEY, DISCONNECTED, FLOW_KEY, SCOPE_KEY, WATCH_KEY, Exchange
from tidal_gateway.errors import Refusal, refusal_of
from tidal_gateway.keys.store import KeyEntry
from tidal_gateway.state import Gateway

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_EVENT_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would collect events before it passes them on.
    (b"x-accel-buffering", b"no"),
]
_ERRORS: Final = (Refusal, RequestError, tidal.errors.TidalError)

_log = logging.getLogger("tidal_gateway")


class SlowReader(Exception):
    """The client does not read its answer."""


class Endpoint:
    """The ASGI application of a route.

    Args:
        route: Route.
        gateway: State of the worker.
    """

    def __init__(self, route: RouteEntry, gateway: Gateway) -> None:
        self._route = route
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope[SCOPE_KEY]
        exchange.route = self._route.name
        try:
            await self._answer(scope, exchange, receive, send)
        except ClientDisconnected:
            exchange.disconnected = True
        except SlowReader:
            exchange.disconnected, exchange.code = True, "slow_reader"
            if ABORT_KEY in scope:
                scope[ABORT_KEY]()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Only a disconnect ends here; at shutdown the server cancels too.
            if not exchange.disconnected or task is None or task.uncancel() > 0:
                exchange.status, exchange.code = exchange.status or 503, exchange.code or "shutdown"
                raise
        finally:
            if exchange.disconnected:
                exchange.status, exchange.code = DISCONNECTED, exchange.code or "client_disconnected"

    async def _answer(self, scope: Scope, exchange: Exchange, receive: Receive, send: Send) -> None:
        sent = _Sender(send, exchange, scope.get(FLOW_KEY), self._gateway.settings.write_timeout_s)
        try:
            headers = decoded_headers(scope)
            key = self._authenticate(headers)
            exchange.key = "" if key is None else key.id
            uncount = self._count(key, exchange)
            # A client that waits for the end may send its next request, to another worker, before this block ends.
            sent.before_end = uncount
            try:
                body = b""
                if self._route.method == "POST":
                    full = self._gateway.pool.lanes.full
                    if full:
                        refuse_full(self._gateway, exchange, key, scope.get("path_params", {}).get("model", ""))
                    settings = self._gateway.settings
                    body = await read_body(scope, receive, headers, settings.max_body_bytes, settings.body_timeout_s)
                    if full:
                        refuse_full(self._gateway, exchange, key, named_model(body))
                request = ApiRequest(self._gateway, exchange, key, headers, body, scope.get("path_params", {}))
                unwatch = _watch(scope, exchange)
                try:
                    await self._run(request, sent)
                finally:
                    unwatch()
            finally:
                uncount()
        except _ERRORS as error:
            await self._fail(refusal_of(error), exchange, sent)
        except asyncio.CancelledError:
            if not exchange.disconnected:  # the time to end has passed
                await self._fail(_stopping(sent.begun), exchange, sent)
            raise
        except Exception as error:
            if isinstance(error, ClientDisconnected | SlowReader):
                raise
            _log.exception("request %s failed", exchange.request_id)
            await self._fail(refusal_of(error), exchange, sent)

    async def _run(self, request: ApiRequest, sent: _Sender) -> None:
        answer = await self._route.answer(request)
        if isinstance(answer, HttpAnswer):
            await sent.whole(answer)
            return
        async with aclosing(answer.events) as events:
            async for each in events:
                await sent.event(each)
        await sent.end()

    async def _fail(self, refusal: Refusal, exchange: Exchange, sent: _Sender) -> None:
        exchange.code = refusal.code
        if sent.begun:
            await sent.event(error_event(refusal, self._route.shape))
            await sent.end()
        else:
            await sent.whole(error_answer(refusal, self._route.shape))

    def _authenticate(self, headers: Mapping[str, str]) -> KeyEntry | None:
        if self._gateway.keys is None or self._route.open:
            return None
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if not text:
            raise Refusal(
                401, "the request has no API key; send the header 'Authorization: Bearer KEY'", code="missing_api_key"
            )
        key = self._gateway.keys.find(text.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise Refusal(401, "the API key is not known, or was revoked; use another one", code="invalid_api_key")
        return key

    def _count(self, key: KeyEntry | None, exchange: Exchange) -> Callable[[], None]:
        """Count a request of a key until the returned function is called, the first time."""
        rates = self._gateway.rates
        if key is None or rates is None or not key.limited:
            return _nothing
        counted = ExitStack()
        counted.enter_context(rates.request(key))
        counted.callback(lambda: rates.used(key, exchange.input_tokens + exchange.output_tokens))
        return counted.close


def _nothing() -> None:
    pass


def _stopping(begun: bool) -> Refusal:
    what = "before the answer was complete; what was sent is all" if begun else "before there was an answer"
    return Refusal(503, f"the gateway stopped {what}: send the request again", code="unavailable", retry_after_s=1)


class _Sender:
    """Sends one response.

    Args:
        send: ASGI's `send`.
        exchange: Log and metric fields of the request.
        flow: Flow control of the connection; None if it is not known.
        timeout_s: Longest time that a part waits for the client to read, in seconds.
    """

    def __init__(self, send: Send, exchange: Exchange, flow: Any, timeout_s: float) -> None:
        self._send, self._exchange, self._flow, self._timeout_s = send, exchange, flow, timeout_s
        self.begun = False
        self.before_end: Callable[[], None] | None = None

    async def whole(self, answer: HttpAnswer) -> None:
        headers = [
            (b"content-type", answer.media_type),
            (b"content-length", b"%d" % len(answer.content)),
            *answer.headers,
        ]
        self._exchange.status = answer.status
        self._begin()
        self._finish()
        await self._in_time({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._in_time({"type": "http.response.body", "body": answer.content})

    async def event(self, content: bytes) -> None:
        if not self.begun:
            self._begin()
            self._exchange.status = 200
            self._exchange.first_part_s = self._exchange.elapsed_s()
            await self._in_time({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        await self._in_time({"type": "http.response.body", "body": content, "more_body": True})

    async def end(self) -> None:
        if not self.begun:
            await self.event(b"")
        self._finish()
        await self._in_time({"type": "http.response.body", "body": b"", "more_body": False})

    def _finish(self) -> None:
        self._exchange.finished = True
        if self.before_end is not None:
            self.before_end()

    def _begin(self) -> None:
        self.begun = True
        if self._exchange.trace is not None:
            self._exchange.trace.answer_begins()

    async def _in_time(self, message: Any) -> None:
        if self._flow is not None and not self._flow.write_paused:  # without a timer, which takes 5 µs
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise SlowReader from None


def _watch(scope: Scope, exchange: Exchange) -> Callable[[], None]:
    """Cancel the current task when the client disconnects, until the returned function is called.

    Only a connection that reports its end does so.
    """
    if WATCH_KEY not in scope:
        return _nothing
    task = asyncio.current_task()
    assert task is not None

    def lost() -> None:
        if not exchange.finished:
            exchange.disconnected = True
            task.cancel()

    unwatch: Callable[[], None] = scope[WATCH_KEY](lost)
    return unwatch


def decoded_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by lower-case name; of repeated ones the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
