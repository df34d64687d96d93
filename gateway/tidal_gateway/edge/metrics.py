"""Prometheus metrics of the gateway; those of all workers are added up by the process that started them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram

from tidal_gateway.edge.exchange import Exchange
from tidal_gateway.upstream.pool import ServerPool

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

REQUESTS = Counter(
    "tidal_gateway_requests_total",
    "Answered requests; status 499: the client disconnected",
    ["route", "model", "status"],
)
SECONDS = Histogram(
    "tidal_gateway_request_duration_seconds", "Time from arrival to the last byte", ["route"], buckets=_BUCKETS
)
FIRST_PART = Histogram(
    "tidal_gateway_first_part_seconds", "Time from arrival to the first part of a stream", ["route"], buckets=_BUCKETS
)
TOKENS = Counter("tidal_gateway_tokens_total", "Prompt and generated tokens", ["model", "direction"])
IN_FLIGHT = Gauge("tidal_gateway_in_flight_requests", "Requests without an answer", multiprocess_mode="livesum")
RETRIES = Counter("tidal_gateway_retries_total", "Requests sent again, by why it was allowed", ["reason"])
SERVER_UP = Gauge(
    "tidal_gateway_server_up", "Whether a server is in use; NaN once it is not listed any more", ["server"],
    multiprocess_mode="livemin",
)  # fmt: skip
SERVER_CALLS = Gauge(
    "tidal_gateway_server_outstanding_requests", "Requests sent and not answered", ["server"],
    multiprocess_mode="livesum",
)  # fmt: skip
OUTSTANDING = Gauge(
    "tidal_gateway_model_outstanding_requests", "Requests of a model without an answer", ["model"],
    multiprocess_mode="livesum",
)  # fmt: skip
LOG_DROPPED = Gauge(
    "tidal_gateway_access_log_dropped_lines", "Lines that could not be written", multiprocess_mode="livesum"
)


# Looking up a labelled series takes longer than counting in it.
@lru_cache(4096)
def _requests(route: str, model: str, status: int) -> Any:
    return REQUESTS.labels(route, model, str(status))


@lru_cache(256)
def _seconds(route: str) -> Any:
    return SECONDS.labels(route)


@lru_cache(4096)
def _tokens(model: str, direction: str) -> Any:
    return TOKENS.labels(model, direction)


def record(exchange: Exchange) -> None:
    """Count an answered request. Names that a client made up are in no label."""
    _requests(exchange.route, exchange.model, exchange.status).inc()
    _seconds(exchange.route).observe(exchange.elapsed_s())
    if exchange.first_part_s is not None:
        FIRST_PART.labels(exchange.route).observe(exchange.first_part_s)
    if exchange.input_tokens:
        _tokens(exchange.model, "input").inc(exchange.input_tokens)
    if exchange.output_tokens:
        _tokens(exchange.model, "output").inc(exchange.output_tokens)


class PoolMetrics:
    """Publishes the state of the servers.

    Args:
        pool: Servers behind the gateway.
    """

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self._retries: dict[str, int] = {}
        self._servers: set[str] = set()

    def publish(self) -> None:
        """Publish the present state."""
        for server in self._pool.servers:
            SERVER_UP.labels(server.address).set(int(server.up))
            SERVER_CALLS.labels(server.address).set(len(server.calls))
        listed = {server.address for server in self._pool.servers}
        for address in self._servers - listed:  # series of several processes cannot be removed
            SERVER_UP.labels(address).set(math.nan)
            SERVER_CALLS.labels(address).set(0)
        self._servers = listed
        for model, count in self._pool.lanes.outstanding().items():
            OUTSTANDING.labels(model).set(count)
        for reason, count in self._pool.retries.items():
            RETRIES.labels(reason).inc(count - self._retries.get(reason, 0))
            self._retries[reason] = count
