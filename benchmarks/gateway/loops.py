"""Closed loops over one model, through the gateway and directly to Triton's HTTP, with the processor time of each."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping

from benchmarks.gateway.http_load import Request, closed_loop
from benchmarks.gateway.measure import CONCURRENCIES, DIRECT, GATEWAY, Size, in_turns
from benchmarks.report import Report, progress

# Figures of a round; processor time is per request.
_PER_SECOND, _GATEWAY_MS, _SERVER_MS = "per_second", "gateway_cpu_ms", "server_cpu_ms"
_WARM_S = 0.5
Rounds = dict[str, list[float]]


def measure_loops(
    report: Report,
    requests: Mapping[str, Mapping[str, Request]],
    gateway_cpu: Callable[[], float],
    server_cpu: Callable[[], float],
    size: Size,
) -> None:
    """Measure the loops of every use and concurrency, and add their table to the report.

    Args:
        report: Report to add to.
        requests: Requests by use and system.
        gateway_cpu: Returns the processor time of the gateway's processes so far, in seconds.
        server_cpu: Returns that of the server's processes.
        size: Size of the measurements.
    """
    found: dict[str, dict[str, dict[str, Rounds]]] = {}
    for use, systems in requests.items():
        progress(f"requests per second through the gateway and directly: {use}")
        for request in systems.values():
            asyncio.run(closed_loop(request, concurrency=max(CONCURRENCIES), seconds=min(_WARM_S, size.seconds)))
        found[use] = {
            str(concurrency): compare_loops(systems, gateway_cpu, server_cpu, concurrency, size)
            for concurrency in CONCURRENCIES
        }
    report.measured["closed_loops"] = found
    columns = ["one text", "in flight", "gateway, requests/s", "Triton's HTTP, requests/s"]
    columns += [f"{processes}, CPU ms" for processes in ("gateway", "gateway and server", "Triton's HTTP")]
    rows = [[use, each, *_figures(systems)] for use, loops in found.items() for each, systems in loops.items()]
    report.add_table("The same model through the gateway and directly: CPU time per request", columns, rows)


def compare_loops(
    requests: Mapping[str, Request],
    gateway_cpu: Callable[[], float],
    server_cpu: Callable[[], float],
    concurrency: int,
    size: Size,
) -> dict[str, Rounds]:
    """Return the figures of each round by system, in rounds that alternate between the systems.

    Args:
        requests: Request by system.
        gateway_cpu: Returns the processor time of the gateway's processes so far, in seconds.
        server_cpu: Returns that of the server's processes.
        concurrency: Number of requests in flight.
        size: Size of the measurements.

    Raises:
        RuntimeError: A request failed.
    """
    found: dict[str, Rounds] = {name: {_PER_SECOND: [], _GATEWAY_MS: [], _SERVER_MS: []} for name in requests}
    for turn in range(size.loop_rounds):
        for name in in_turns(requests, turn):
            gateway_s, server_s = gateway_cpu(), server_cpu()
            load = asyncio.run(closed_loop(requests[name], concurrency=concurrency, seconds=size.seconds))
            gateway_s, server_s = gateway_cpu() - gateway_s, server_cpu() - server_s
            if load.failed:
                raise RuntimeError(f"{load.failed} of {load.answered} requests to {name} failed")
            found[name][_PER_SECOND].append(load.per_second)
            found[name][_GATEWAY_MS].append(gateway_s * 1e3 / load.answered)
            found[name][_SERVER_MS].append(server_s * 1e3 / load.answered)
    return found


def _figures(systems: Mapping[str, Rounds]) -> list[str]:
    """Return the cells of a row: medians of the rounds."""
    gateway, direct = systems[GATEWAY], systems[DIRECT]
    together = [sum(each) for each in zip(gateway[_GATEWAY_MS], gateway[_SERVER_MS], strict=True)]
    # The gateway has no part in requests that go directly to Triton.
    spent = (gateway[_GATEWAY_MS], together, direct[_SERVER_MS])
    per_second = (gateway[_PER_SECOND], direct[_PER_SECOND])
    return [f"{statistics.median(each):.0f}" for each in per_second] + [
        f"{statistics.median(each):.2f}" for each in spent
    ]
