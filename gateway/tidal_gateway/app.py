"""The ASGI application of a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidal_gateway.api.answers import HttpAnswer
from tidal_gateway.api.routes import CONSOLE_ROUTES, ROUTES
from tidal_gateway.api.unknown import UnknownRoutes
from tidal_gateway.description import description
from tidal_gateway.edge import metrics
from tidal_gateway.edge.access_log import AccessLog
from tidal_gateway.edge.exchange import SCOPE_KEY, Exchange, request_id
from tidal_gateway.endpoint import Endpoint, Receive, Scope, Send, decoded_headers
from tidal_gateway.errors import Refusal
from tidal_gateway.keys.rates import RateTable
from tidal_gateway.keys.store import KeyStore
from tidal_gateway.live.sampler import Sampler
from tidal_gateway.settings import GatewaySettings, parse_server
from tidal_gateway.state import Gateway
from tidal_gateway.upstream.lanes import Lanes
from tidal_gateway.upstream.pool import ServerPool
from tidal_gateway.upstream.server_file import follow

if TYPE_CHECKING:
    from tidal_gateway.tracing import Tracing

_PUBLISH_S: Final = 1.0
_REQUEST_ID: Final = b"x-request-id"

_log = logging.getLogger("tidal_gateway")


def create_app(
    settings: GatewaySettings,
    *,
    log_target: str | None = None,
    rate_table: Path | None = None,
    lane_table: Path | None = None,
) -> Outer:
    """Return the application of one worker; its servers are connected when it starts.

    Args:
        settings: Settings of the gateway.
        log_target: Target of the access log, see `log_target`; None for no log.
        rate_table: File that `create_table` created; None without keys.
        lane_table: File that `create_lane_table` created; None for a single worker.
    """
    holder: list[Gateway] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        gateway = holder[0]
        _drain_on_signal(gateway)
        await gateway.pool.start()
        tasks = [asyncio.create_task(_publish(gateway)), asyncio.create_task(_end_with_parent())]
        if gateway.log is not None:
            tasks.append(asyncio.create_task(gateway.log.run()))
        if settings.servers_file is not None:
            tasks.append(asyncio.create_task(follow(settings.servers_file, gateway.pool.replace)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await gateway.pool.close()
            if gateway.log is not None:
                gateway.log.close()
            if gateway.rates is not None:
                gateway.rates.close()
            if gateway.tracing is not None:
                await asyncio.to_thread(gateway.tracing.close)

    # Without redirect_slashes: paths that end with a slash would be redirected to what the Host header names.
    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    gateway = Gateway(
        settings,
        ServerPool(
            [parse_server(each) for each in settings.server],
            Lanes(settings.max_outstanding, lane_table, settings.workers),
            settings.retry_ratio,
        ),
        keys=None if settings.keys is None else KeyStore(settings.keys),
        rates=None if rate_table is None else RateTable(rate_table),
        log=None if log_target is None else AccessLog(log_target),
        tracing=_tracing(settings),
    )
    if settings.console_viewers:
        gateway.sampler = Sampler(gateway.pool.servers, settings.console_viewers)
    holder.append(gateway)
    direct: dict[tuple[str, str], Endpoint] = {}
    routes = (*ROUTES, description(ROUTES), *CONSOLE_ROUTES)
    for route in routes:
        endpoint = Endpoint(route, gateway)
        app.router.routes.append(Route(route.path, endpoint, methods=[route.method], name=route.name))
        if "{" not in route.path and not settings.cors_origin:
            direct[route.method, route.path] = endpoint
    unknown = UnknownRoutes(routes)
    app.add_exception_handler(HTTPException, _unknown(unknown))
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return Outer(app, direct, unknown, gateway)


class Outer:
    """What every request passes first and last: its id, the metrics, the access log.

    Args:
        app: Application with the routes.
        direct: Endpoints by method and path that need neither the router nor middleware: both take a tenth of the
            processor time of a request.
        unknown: Answers requests that no route answers.
        gateway: State of the worker.
    """

    def __init__(
        self,
        app: FastAPI,
        direct: Mapping[tuple[str, str], Endpoint],
        unknown: UnknownRoutes,
        gateway: Gateway,
    ) -> None:
        self.app = app
        self.direct = direct
        self.unknown = unknown
        self.gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the application from start to end."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_id = next((value for name, value in scope["headers"] if name == _REQUEST_ID), None)
        client = scope.get("client")
        exchange = Exchange(
            request_id(None if sent_id is None else sent_id.decode("latin-1")),
            scope["method"],
            scope["path"],
            "" if client is None else client[0],
        )
        scope[SCOPE_KEY] = exchange
        if self.gateway.tracing is not None:
            exchange.trace = self.gateway.tracing.begin(exchange.method, exchange.path, decoded_headers(scope))
        header = (_REQUEST_ID, exchange.request_id.encode())

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = exchange.status or message["status"]
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        self.gateway.in_flight += 1
        try:
            await self.direct.get((exchange.method, exchange.path), self.app)(scope, receive, send_with_id)
        finally:
            self.gateway.in_flight -= 1
            exchange.end_trace()
            self.record(exchange)

    def refused(self, refusal: Refusal, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the answer to a request that is refused before it reaches a route."""
        return _plain(self.unknown.answer(refusal, path))

    def record(self, exchange: Exchange) -> None:
        """Count and log an answered request."""
        metrics.record(exchange)
        if self.gateway.log is not None:
            self.gateway.log.write(exchange)


def _tracing(settings: GatewaySettings) -> Tracing | None:
    if settings.otlp_endpoint is None:
        return None
    from tidal_gateway.tracing import Tracing

    return Tracing(settings.otlp_endpoint, settings.trace_ratio)


def _unknown(routes: UnknownRoutes) -> Any:
    async def answer(request: Request, error: Exception) -> Response:
        exchange: Exchange = request.scope[SCOPE_KEY]
        refusal = routes.refusal(request.method, request.url.path)
        exchange.code = refusal.code
        status, headers, content = _plain(routes.answer(refusal, request.url.path))
        return Response(content, status, headers)

    return answer


def _plain(answer: HttpAnswer) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    headers = [(b"content-type", answer.media_type), *answer.headers]
    return answer.status, {name.decode(): value.decode() for name, value in headers}, answer.content


async def _publish(gateway: Gateway) -> None:
    published = metrics.PoolMetrics(gateway.pool)
    while True:
        published.publish()
        metrics.IN_FLIGHT.set(gateway.in_flight)
        if gateway.log is not None:
            metrics.LOG_DROPPED.set(gateway.log.dropped)
        await asyncio.sleep(_PUBLISH_S)


async def _end_with_parent() -> None:
    """Stop where the process that supervises the workers was killed."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(1.0)
    _log.error("the gateway's first process has ended: this worker stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _drain_on_signal(gateway: Gateway) -> None:
    """On SIGTERM report that the gateway drains, and stop after `drain_s`."""
    loop, stop = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    if not callable(stop):  # not in a worker
        return

    def drain(number: int, frame: Any) -> None:
        if gateway.draining or not gateway.settings.drain_s:
            gateway.draining = True
            stop(number, frame)
            return
        gateway.draining = True
        _log.info("draining for %g s", gateway.settings.drain_s)
        loop.call_soon_threadsafe(loop.call_later, gateway.settings.drain_s, stop, number, None)

    try:
        signal.signal(signal.SIGTERM, drain)
    except ValueError:  # not in the main thread
        return
