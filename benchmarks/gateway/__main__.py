"""`python -m benchmarks.gateway [--quick] [--json FILE]`: what the gateway costs, and what survives through it."""

from __future__ import annotations

import os
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gateway import free_engine, models, proxies
from benchmarks.gateway.http_load import Request
from benchmarks.gateway.loops import measure_loops
from benchmarks.gateway.measure import (
    CONCURRENCIES,
    DIRECT,
    GATEWAY,
    LITELLM,
    STREAMS,
    TOKENS_PER_SECOND,
    Size,
    compare,
    cost,
    free_requests,
    lone_latency,
    median_of_differences,
    median_of_ratios,
    streams,
    tokens_per_second,
    unary,
)
from benchmarks.gateway.plot import plot
from benchmarks.gateway.survival import SteadyLoad, disconnect, is_ready, taken_slots, upstream
from benchmarks.report import Claim, Report, progress
from testing.serving import Served, serving
from testing.waiting import until

_FULL = Size(rounds=9, lone=100, seconds=3.0, tokens=100, kills=5, disconnects=1000)
_QUICK = Size(rounds=3, lone=40, seconds=1.0, tokens=40, kills=1, disconnects=100)
PACED, SATURATED = f"{TOKENS_PER_SECOND} tokens/s each", "saturated"
_COMPARED_AT = 8
_RESTARTED_S = 120.0
_LONG = 3000


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter rounds: three minutes, not eight.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and plot (.png) beside it.")
    ] = None,
) -> None:
    """Measure the gateway with one worker, keys and an access log."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    size = _QUICK if quick else _FULL
    report = Report("gateway", quick)
    with ExitStack() as stack:
        engine, openai = stack.enter_context(free_engine.answering())
        measure_cost(report, engine, openai, size)
    with tempfile.TemporaryDirectory(prefix="tidal-gateway-benchmark-") as name:
        folder = Path(name)
        progress("building tiny models")
        repository = models.build(folder)
        (folder / "runtime").mkdir()
        with serving(repository, folder / "runtime", "--exit-timeout", "3") as served:
            measure_served(report, served, size)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def measure_cost(report: Report, engine: str, openai: str, size: Size) -> None:
    """Measure processor time per request before an engine that answers at once, and that of LiteLLM.

    Args:
        report: Report to add to.
        engine: ``host:port`` of the free Triton.
        openai: ``host:port`` of the free OpenAI server.
        size: Size of the measurements.
    """
    with ExitStack() as stack:
        gateway = stack.enter_context(proxies.gateway("--server", engine))
        requests = free_requests(gateway)
        costs: dict[str, dict[str, list[float]]] = {use: {} for use in requests}
        rates: dict[str, dict[str, list[float]]] = {use: {} for use in requests}
        cost(gateway, requests["classification"], 8, size.seconds)  # warms up
        for use, request in requests.items():
            progress(f"requests per second of processor time: {use}")
            for concurrency in CONCURRENCIES:
                found = [cost(gateway, request, concurrency, size.seconds) for _ in range(size.loop_rounds)]
                costs[use][str(concurrency)] = [each.per_cpu_second for each in found]
                rates[use][str(concurrency)] = [each.load.per_second for each in found]
        compared = {GATEWAY: gateway}
        if reason := proxies.why_no_litellm():
            progress(f"without LiteLLM: {reason}")
        else:
            progress("LiteLLM")
            compared[LITELLM] = stack.enter_context(proxies.litellm(openai))
        rounds = compare(compared, size, _COMPARED_AT)
    report.measured |= {"per_cpu_second": costs, "per_second": rates, "proxies": rounds}
    rows = [
        [use, each, *(f"{statistics.median(of[use][each]):.0f}" for of in (costs, rates))]
        for use in costs
        for each in costs[use]
    ]
    columns = ["one text", "in flight", "requests per CPU second", "requests per second"]
    report.add_table("The gateway before an engine that answers at once, one worker, keys and log on", columns, rows)
    at = {each: statistics.median(found) for each, found in costs["classification"].items()}
    note = ", ".join(f"{value:.0f} at {each}" for each, value in at.items())
    report.claims.append(Claim("gateway_requests_per_cpu_second", ">= 1000", min(at.values()), note=note))
    if LITELLM in rounds:
        ours, theirs = (statistics.median(rounds[each]) for each in (GATEWAY, LITELLM))
        note = f"embeddings, {_COMPARED_AT} in flight: {ours:.0f} against {theirs:.0f}"
        ratio = median_of_ratios(rounds, GATEWAY, LITELLM)
        report.claims.append(Claim("vs_litellm_requests_per_cpu_second", ">= 3", ratio, note=note))


def measure_served(report: Report, served: Served, size: Size) -> None:
    """Measure latency, requests per second and streams against Triton's own HTTP, and what survives.

    Args:
        report: Report to add to.
        served: Running server with the models of the benchmark.
        size: Size of the measurements.
    """
    direct = str(served.report["http"])
    with proxies.gateway("--server", upstream(served), "--timeout-s", "120") as gateway:
        uses = unary(gateway, direct)
        progress("lone requests")
        lone_latency(uses, Size(1, 20, 0, 0, 0, 0))  # warms up
        lone = lone_latency(uses, size)
        measure_loops(report, uses, gateway.cpu_seconds, partial(proxies.cpu_seconds_of, served.process.pid), size)
        found: dict[str, dict[str, list[float]]] = {PACED: {}, SATURATED: {}}
        for case, pause_ms in ((PACED, 1000 // TOKENS_PER_SECOND), (SATURATED, 0)):
            progress(f"{STREAMS} streams, {case}")
            requests = streams(gateway, direct, pause_ms, size.tokens)
            rounds: dict[str, list[float]] = {name: [] for name in requests}
            for _ in range(max(1, size.rounds // 3)):
                for name, request in requests.items():
                    rounds[name].append(tokens_per_second(request, STREAMS, size.tokens))
            found[case] = rounds
        report.measured |= {"lone_ms": lone, "tokens_per_second": found}
        conclude(report, lone, found)
        _survive(report, served, gateway, size)


def conclude(report: Report, lone: dict[str, dict[str, list[float]]], found: dict[str, dict[str, list[float]]]) -> None:
    """Add the tables and claims of latency and streams to the report.

    Args:
        report: Report to add to.
        lone: Median latency of each round in ms, by use and system.
        found: Tokens per second of each round, by case and system.
    """
    for title, unit, of in (("One request at a time", "ms", lone), (f"{STREAMS} streams", "tokens/s", found)):
        rows = [[case, *(f"{statistics.median(each):.2f}" for each in rounds.values())] for case, rounds in of.items()]
        report.add_table(title, ["case", *(f"{name}, {unit}" for name in (GATEWAY, DIRECT))], rows)
    for use, rounds in lone.items():
        note = " against ".join(f"{statistics.median(rounds[each]):.2f}" for each in (GATEWAY, DIRECT)) + " ms"
        added = median_of_differences(rounds, GATEWAY, DIRECT)
        differences = [a - b for a, b in zip(rounds[GATEWAY], rounds[DIRECT], strict=True)]
        note += f"; {len(differences)} rounds from {min(differences):.2f} to {max(differences):.2f}"
        report.claims.append(Claim(f"gateway_added_p50_ms[{use}]", "<= 1.0", added, note=note))
    ratio = median_of_ratios(found[PACED], GATEWAY, DIRECT)
    saturated = median_of_ratios(found[SATURATED], GATEWAY, DIRECT)
    note = f"saturated: {saturated:.2f}"
    report.claims.append(Claim("stream_tokens_vs_direct", ">= 0.95", ratio, note=note))


def _survive(report: Report, served: Served, gateway: proxies.Proxy, size: Size) -> None:
    progress("killed stubs")
    request = Request(gateway.address, "/v1/classify", {"model": models.INTENT, "input": models.TEXT}, gateway.headers)
    with SteadyLoad([request], clients=8) as load:
        load.wait_for(50)
        for _ in range(size.kills):
            old = {each.pid for each in served.stubs(models.INTENT)}
            for stub in served.stubs(models.INTENT):
                stub.kill()
            until(partial(_replaced, served, old), _RESTARTED_S)
            load.wait_for(100)
    failed = load.failures
    note = f"{len(load.sent)} requests, {size.kills} kills {'; '.join(failed[:1])}"
    report.claims.append(Claim("failed_on_killed_stub", "== 0", len(failed), note=note))
    progress("disconnects")
    body: dict[str, Any] = {"model": models.WRITER, "prompt": "x", "max_tokens": _LONG, "ignore_eos": True}
    requests = [
        Request(gateway.address, "/v1/completions", {**body, "stream": stream}, gateway.headers)
        for stream in (True, False)
    ]
    early = disconnect(requests, size.disconnects)
    until(lambda: taken_slots(served, models.WRITER) == 0, 30)
    lost = taken_slots(served, models.WRITER)
    note = f"{size.disconnects} clients, {early} before their answer was complete"
    report.claims.append(Claim("slots_lost_after_disconnects", "== 0", lost, note=note))


def _replaced(served: Served, old: set[int]) -> bool:
    try:
        return bool({each.pid for each in served.stubs(models.INTENT)} - old) and is_ready(served)
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    typer.run(main)
