"""One reading of all servers behind the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidal_client.errors import ConnectionFailed
from tidal_client.live.reading import read_metrics, read_report
from tidal_client.live.scrape import Scrape, parse


@dataclass(frozen=True, slots=True)
class ServerReport:
    """Report of one server.

    Attributes:
        address: ``host:port`` of its gRPC endpoint.
        scrape: Its metrics; None where they cannot be read.
        ready: Document of `GET /ready` of its `tidal serve`; None where there is none.
        models: Document of `GET /models` of its `tidal serve`; empty where there is none.
        reason: Why its metrics cannot be read; empty where they can.
        cpu_s: Processor time that the reading took, in seconds.
    """

    address: str
    scrape: Scrape | None = None
    ready: Mapping[str, Any] | None = None
    models: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    cpu_s: float = 0.0


async def read_servers(servers: Sequence[tuple[str, str | None]]) -> list[ServerReport]:
    """Read all servers at once.

    Args:
        servers: ``host:port`` of the gRPC endpoint of each, with that of the status endpoint or None.
    """
    return list(await asyncio.gather(*(asyncio.to_thread(_read, *each) for each in servers)))


def _read(address: str, status: str | None) -> ServerReport:
    began = time.thread_time()
    found = _read_all(address, status)
    return replace(found, cpu_s=time.thread_time() - began)


def _read_all(address: str, status: str | None) -> ServerReport:
    if status is None:
        return ServerReport(address, reason="its status endpoint is not known: name it in the setting server, status=")
    ready, models = read_report(status, "/ready"), read_report(status, "/models")
    if models is None:
        return ServerReport(address, ready=ready, reason=f"the status endpoint {status} does not answer")
    # Triton listens for all three protocols on one address.
    metrics = f"{address.rpartition(':')[0]}:{models.get('metrics_port')}"
    try:
        scrape = parse(read_metrics(metrics), time.monotonic())
    except (ConnectionFailed, ValueError) as error:
        return ServerReport(address, None, ready, models, str(error))
    return ServerReport(address, scrape, ready, models)
