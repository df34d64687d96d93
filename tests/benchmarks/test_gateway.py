"""The benchmark of the gateway: its clients count what arrives, and claims are medians of the rounds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.gateway import __main__ as benchmark
from benchmarks.gateway import free_engine, proxies
from benchmarks.gateway.http_load import Connection, Request, closed_loop, percentile
from benchmarks.gateway.loops import compare_loops, measure_loops
from benchmarks.gateway.measure import (
    CONCURRENCIES,
    DIRECT,
    GATEWAY,
    LITELLM,
    Size,
    cost,
    free_requests,
    tokens_per_second,
    unary,
)
from benchmarks.gateway.plot import plot
from benchmarks.gateway.survival import SteadyLoad, disconnect, upstream
from benchmarks.plots import style
from benchmarks.report import Report
from testing.serving import serving
from tests.gateway.conftest import write_doubles

TINY = Size(rounds=1, lone=1, seconds=0.3, tokens=1, kills=0, disconnects=0)


@contextmanager
def scripted(*answers: bytes) -> Iterator[str]:
    """A server that gives one answer per connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the block has ended
                    return
                with contextlib.suppress(OSError), connection:  # its client may have gone
                    connection.recv(10_000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # ends the call of `accept`
        thread.join(20)


def test_a_stream_is_read_to_its_first_event_however_long_that_is() -> None:
    """The beginning of an event was looked for in the last 200 bytes: a long one counted when the stream had ended."""
    event = b'data: {"text": "%s"}\n\n' % (b"x" * 500)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        async def ask() -> tuple[int, float]:
            connection = await Connection.open(f"127.0.0.1:{listening.getsockname()[1]}")
            asked = asyncio.ensure_future(connection.stream(b"GET / HTTP/1.1\r\n\r\n", b"data:"))
            accepted, _ = await asyncio.to_thread(listening.accept)
            with accepted:
                for part in (b"HTTP/1.1 200 OK\r\n\r\nda", event[2:]):
                    await asyncio.to_thread(accepted.sendall, part)
                return await asyncio.wait_for(asked, 10)

        assert asyncio.run(ask())[0] <= 1


def test_the_loop_counts_answers_and_failures() -> None:
    with free_engine.answering() as (_, openai):
        found = asyncio.run(closed_loop(Request(openai, "/v1/embeddings", {}), concurrency=3, seconds=1.0))
    assert found.failed == 0
    assert found.answered > 3
    assert found.p50_ms <= found.p99_ms
    refused = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    with scripted(refused) as address:

        async def ask() -> tuple[int, bytes, bytes]:
            connection = await Connection.open(address)
            status, body = await connection.send(Request(address, "/", {}).encoded())
            return status, body, connection.head

        status, body, head = asyncio.run(ask())
    assert (status, body) == (429, b"{}")
    assert b"Retry-After: 7" in head


def test_a_request_over_a_closed_connection_fails() -> None:
    async def ask(address: str) -> None:
        connection = await Connection.open(address)
        for _ in range(2):
            with pytest.raises(ConnectionError, match="closed the connection"):
                await asyncio.wait_for(connection.send(b"GET / HTTP/1.1\r\n\r\n"), 10)

    with scripted(b"") as address:
        asyncio.run(ask(address))


def test_percentiles() -> None:
    seconds = [number / 1000 for number in range(1, 101)]
    assert percentile(seconds, 50) == pytest.approx(51)
    assert percentile(seconds, 99) == pytest.approx(100)


def test_streams_are_counted_to_their_end() -> None:
    events = b"".join(b'%x\r\ndata: {"a": 1}\n\n\r\n' % 16 for _ in range(5))
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + events
    with scripted(answer + b"0\r\n\r\n") as address:
        assert tokens_per_second(Request(address, "/", {}), 1, 5) > 0
    with scripted(answer) as address, pytest.raises(RuntimeError, match="5 events arrived; expected 6"):
        tokens_per_second(Request(address, "/", {}), 1, 6)


def test_a_broken_connection_and_an_error_are_failures() -> None:
    with (
        scripted(b"", b"HTTP/1.1 503 x\r\nContent-Length: 4\r\n\r\ngone") as address,
        SteadyLoad([Request(address, "/x", {})], clients=1) as load,
    ):
        load.wait_for(2, 20)
    assert [each.split()[1] for each in load.failures][:2] == ["0", "503"]


def test_disconnecting_clients_are_counted() -> None:
    with scripted(*[b""] * 10) as address:
        assert disconnect([Request(address, "/", {})], 6, clients=2, latest_s=0.0) == 6


@pytest.mark.server
def test_the_gateway_before_the_free_engine() -> None:
    """What it answers is what the engine computes, and the processor time is that of its processes."""
    with free_engine.answering() as (engine, _), proxies.gateway("--server", engine) as gateway:
        for use, request in free_requests(gateway).items():
            assert gateway.gateway is not None
            answer = gateway.gateway.post(request.path, request.body, headers=gateway.headers)
            row = answer.json()["data"][0]
            if use == "classification":
                assert (row["label"], row["num_classes"]) == ("book_flight", 8)
            else:
                assert len(row["embedding"]) == free_engine.DIMENSIONS
            assert gateway.gateway.post(request.path, request.body).status_code == 401
            assert 0 < cost(gateway, request, 4, 1.0).per_cpu_second < 100_000


def test_processor_time_of_a_loop_is_per_request() -> None:
    with free_engine.answering() as (_, openai):
        request = Request(openai, "/v1/embeddings", {})
        gateway_s, server_s = itertools.count(0.0, 0.2), itertools.count(0.0, 0.3)
        found = compare_loops(
            {GATEWAY: request, DIRECT: request}, lambda: next(gateway_s), lambda: next(server_s), 2, TINY
        )
    assert list(found) == [GATEWAY, DIRECT]
    for rounds in found.values():
        assert [len(each) for each in rounds.values()] == [TINY.loop_rounds] * 3
        for per_second, gateway_ms, server_ms in zip(*rounds.values(), strict=True):
            assert gateway_ms == pytest.approx(200 / (per_second * TINY.seconds), rel=0.3)
            assert server_ms == pytest.approx(gateway_ms * 1.5)


@pytest.mark.server
def test_loops_through_the_gateway_and_directly(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "runtime").mkdir()
    write_doubles(tmp_path / "models", tmp_path / "log", ["intent", "embedder"])
    report = Report("gateway", quick=True)
    with (
        serving(tmp_path / "models", tmp_path / "runtime", "--exit-timeout", "3") as served,
        proxies.gateway("--server", upstream(served)) as gateway,
    ):
        requests = unary(gateway, str(served.report["http"]))
        server_cpu = partial(proxies.cpu_seconds_of, served.process.pid)
        measure_loops(report, requests, gateway.cpu_seconds, server_cpu, TINY)
        absent = replace(requests["embedding"][DIRECT], path="/v2/models/absent/infer")
        with pytest.raises(RuntimeError, match=f"requests to {DIRECT} failed"):
            compare_loops({DIRECT: absent}, gateway.cpu_seconds, server_cpu, 1, TINY)
    found = json.loads(json.dumps(report.document()))["measured"]["closed_loops"]
    assert found.keys() == {"classification", "embedding"}
    for loops in found.values():
        assert list(loops) == [str(each) for each in CONCURRENCIES]
        for systems in loops.values():
            assert min(systems[GATEWAY]["gateway_cpu_ms"]) > max(systems[DIRECT]["gateway_cpu_ms"])
            for rounds in systems.values():
                assert min(rounds["per_second"]) > 0
                assert 0 < min(rounds["server_cpu_ms"]) < 1000
    (table,) = report.tables
    assert table.row_count == len(found) * len(CONCURRENCIES)


def test_claims_are_medians_of_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(style, "DPI", 30)
    report = Report("gateway", quick=True)
    lone = {
        "classification": {GATEWAY: [2.0, 9.0, 2.0], DIRECT: [1.5, 1.0, 1.0]},
        "embedding": {GATEWAY: [3.0, 3.0], DIRECT: [1.0, 1.5]},
    }
    streams = {
        benchmark.PACED: {GATEWAY: [570.0, 640.0, 600.0], DIRECT: [600.0, 640.0, 640.0]},
        benchmark.SATURATED: {GATEWAY: [100.0], DIRECT: [400.0]},
    }
    benchmark.conclude(report, lone, streams)
    found = {claim.name: (claim.measured, claim.holds) for claim in report.claims}
    assert found == {
        "gateway_added_p50_ms[classification]": (1.0, True),
        "gateway_added_p50_ms[embedding]": (1.75, False),
        "stream_tokens_vs_direct": (0.95, True),
    }
    assert "0.25" in report.claims[-1].note
    report.measured |= {"lone_ms": lone, "tokens_per_second": streams, "proxies": {GATEWAY: [1.0], LITELLM: [2.0]}}
    plot(json.loads(json.dumps(report.document())), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
