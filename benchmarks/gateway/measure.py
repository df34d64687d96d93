"""The measurements, in rounds that alternate between the systems."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gateway import free_engine, models
from benchmarks.gateway.http_load import Connection, LoadResult, Request, closed_loop, percentile
from benchmarks.gateway.proxies import Proxy
from tidal_gateway.api import classification, embeddings
from tidal_gateway.api.rows import TOKENS

GATEWAY, DIRECT, LITELLM = "tidal gateway", "Triton's HTTP", "LiteLLM"
CONCURRENCIES = (1, 8, 64)
STREAMS, TOKENS_PER_SECOND = 32, 20
_SENTENCE = "book a table for two people at the harbour tomorrow at eight in the evening"


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurements.

    Attributes:
        rounds: Rounds of each system.
        lone: Requests of a round, one after the other.
        seconds: Duration of a closed loop.
        tokens: Tokens of a stream.
        kills: Killed stubs.
        disconnects: Clients that disconnect.
    """

    rounds: int
    lone: int
    seconds: float
    tokens: int
    kills: int
    disconnects: int

    @property
    def lone_rounds(self) -> int:
        """Rounds of lone requests, which are short: a machine can be busy for some seconds."""
        return 3 * self.rounds

    @property
    def loop_rounds(self) -> int:
        """Rounds of the closed loops, which last longer."""
        return max(2, self.rounds // 3)


@dataclass(frozen=True, slots=True)
class Cost:
    """A closed loop with the processor time of the proxy.

    Attributes:
        load: The loop.
        per_cpu_second: Answers per second of the proxy's processor time.
    """

    load: LoadResult
    per_cpu_second: float


def in_turns(systems: Iterable[str], turn: int) -> list[str]:
    """Return the systems in the order of a round, which is reversed in every second one."""
    return list(systems)[:: -1 if turn % 2 else 1]


def unary(proxy: Proxy, direct: str) -> dict[str, dict[str, Request]]:
    """Return the same request to the gateway and to Triton, by use: both ask the model for the same outputs.

    Args:
        proxy: The gateway.
        direct: ``host:port`` of Triton's HTTP endpoint.
    """
    tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [models.TEXT]}

    def infer(model: str, *outputs: str) -> Request:
        body = {"inputs": [tensor], "outputs": [{"name": name} for name in outputs]}
        return Request(direct, f"/v2/models/{model}/infer", body)

    def ask(path: str, model: str) -> Request:
        return Request(proxy.address, path, {"model": model, "input": models.TEXT}, proxy.headers)

    return {
        "classification": {
            GATEWAY: ask("/v1/classify", models.INTENT),
            DIRECT: infer(models.INTENT, *classification.OUTPUTS, TOKENS),
        },
        "embedding": {
            GATEWAY: ask("/v1/embeddings", models.EMBEDDER),
            DIRECT: infer(models.EMBEDDER, *embeddings.OUTPUTS, TOKENS),
        },
    }


def lone_latency(uses: Mapping[str, Mapping[str, Request]], size: Size) -> dict[str, dict[str, list[float]]]:
    """Return the median latency of each round by use and system, in milliseconds; one request is in flight."""
    return asyncio.run(_lone_latency(uses, size))


async def _lone_latency(uses: Mapping[str, Mapping[str, Request]], size: Size) -> dict[str, dict[str, list[float]]]:
    connections = {address: await Connection.open(address) for address in _addresses(uses)}
    rounds: dict[str, dict[str, list[float]]] = {use: {name: [] for name in requests} for use, requests in uses.items()}
    for turn in range(size.lone_rounds):
        for use in in_turns(uses, turn):
            names = in_turns(uses[use], turn)
            latencies: dict[str, list[float]] = {name: [] for name in names}
            # One request of each in turns, so that both find the machine in the same state.
            for _ in range(size.lone):
                for name in names:
                    request = uses[use][name]
                    content = request.encoded()
                    began = time.monotonic()
                    status, body = await connections[request.address].send(content)
                    latencies[name].append(time.monotonic() - began)
                    if status != 200:
                        raise RuntimeError(f"{name} answered {status}: {body[:200]!r}")
            for name in names:
                rounds[use][name].append(percentile(latencies[name], 50))
    for connection in connections.values():
        connection.close()
    return rounds


def _addresses(uses: Mapping[str, Mapping[str, Request]]) -> set[str]:
    return {request.address for requests in uses.values() for request in requests.values()}


def cost(proxy: Proxy, request: Request, concurrency: int, seconds: float) -> Cost:
    """Measure a closed loop and the proxy's processor time meanwhile."""
    before = proxy.cpu_seconds()
    load = asyncio.run(closed_loop(request, concurrency=concurrency, seconds=seconds))
    return Cost(load, load.answered / (proxy.cpu_seconds() - before))


def free_requests(proxy: Proxy) -> dict[str, Request]:
    """Return requests with one text to the free engine, by use."""

    def ask(path: str, model: str) -> Request:
        return Request(proxy.address, path, {"model": model, "input": _SENTENCE}, proxy.headers)

    return {
        "classification": ask("/v1/classify", free_engine.CLASSIFIER),
        "embedding": ask("/v1/embeddings", free_engine.EMBEDDER),
    }


def compare(proxies: Mapping[str, Proxy], size: Size, concurrency: int) -> dict[str, list[float]]:
    """Return the embeddings per second of processor time of each proxy, in rounds."""
    rounds: dict[str, list[float]] = {name: [] for name in proxies}
    for proxy in proxies.values():
        cost(proxy, free_requests(proxy)["embedding"], concurrency, 0.5)
    for turn in range(size.rounds):
        for name in in_turns(proxies, turn):
            found = cost(proxies[name], free_requests(proxies[name])["embedding"], concurrency, size.seconds)
            if found.load.failed:
                raise RuntimeError(f"{found.load.failed} requests to {name} failed")
            rounds[name].append(found.per_cpu_second)
    return rounds


def streams(proxy: Proxy, direct: str, pause_ms: int, tokens: int) -> dict[str, Request]:
    """Return the same stream through the gateway and from Triton. The pause between tokens is in the option `top_k`."""
    options = {"max_tokens": tokens, "top_k": pause_ms}
    body = {"model": models.PACED, "prompt": "x", "stream": True, **options}
    own = {"text_input": "x", "stream": True, "parameters": options}
    return {
        GATEWAY: Request(proxy.address, "/v1/completions", body, proxy.headers),
        DIRECT: Request(direct, f"/v2/models/{models.PACED}/generate_stream", own),
    }


def tokens_per_second(request: Request, count: int, tokens: int) -> float:
    """Run streams at once; return the tokens per second that arrived, until the last stream ended."""
    return asyncio.run(_tokens_per_second(request, count, tokens))


async def _tokens_per_second(request: Request, count: int, tokens: int) -> float:
    connections = [await Connection.open(request.address) for _ in range(count)]
    began = time.monotonic()
    # The end of a chunked answer.
    found = await asyncio.gather(*(each.stream(request.encoded(), b"\r\n0\r\n\r\n") for each in connections))
    for connection in connections:
        connection.close()
    events = sum(number for number, _ in found)
    if events != count * tokens:
        raise RuntimeError(f"{request.path}: {events} events arrived; expected {count * tokens}")
    return events / (max(end for _, end in found) - began)


def median_of_differences(rounds: Mapping[str, Sequence[float]], first: str, second: str) -> float:
    """Return the median over the rounds of what `first` takes beyond `second`."""
    return statistics.median(a - b for a, b in zip(rounds[first], rounds[second], strict=True))


def median_of_ratios(rounds: Mapping[str, Sequence[float]], first: str, second: str) -> float:
    """Return the median over the rounds of `first` divided by `second`."""
    return statistics.median(a / b for a, b in zip(rounds[first], rounds[second], strict=True))
