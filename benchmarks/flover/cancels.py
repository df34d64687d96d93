"""Clients that cancel at random moments: while waiting, during prefill, and in the middle of the stream.

`python -m benchmarks.flover.cancels REPOSITORY MODEL` runs 1,000 of them against a built model.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.closed_loop import series_on
from tidal.flover.manifest import load_flover_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer, tidal_serve
from tidal.server.stubs import live_stubs
from tidal_client import AsyncClient, InvalidArgument, RequestError

#: Number of open requests per slot: most of them wait.
_OPEN = 3
_LONGEST_PROMPT, _LONGEST_TEXT = 256, 128
_IDLE_TIMEOUT_S = 30.0
# Share of the assumed time of a text that is assumed next, once one has ended before its client cancelled.
_SOONER = 0.9


@dataclass(frozen=True, slots=True)
class Target:
    """A served model.

    Attributes:
        model: Name of the model.
        http: HTTP URL of the server.
        grpc: gRPC URL of the server.
        metrics: host:port of /metrics.
        process: Process id of the model.
        slots: Number of slots of the model.
        max_length: Largest number of tokens of a prompt and its text.
        vocabulary: Size of the vocabulary; token ids are below it.
    """

    model: str
    http: str
    grpc: str
    metrics: str
    process: int
    slots: int
    max_length: int
    vocabulary: int

    @property
    def longest_prompt(self) -> int:
        """Number of tokens of the longest prompt sent."""
        return min(_LONGEST_PROMPT, self.max_length // 4)

    @property
    def longest_text(self) -> int:
        """Number of tokens that a client requests."""
        return min(_LONGEST_TEXT, self.max_length - self.longest_prompt)

    def published(self, *families: str) -> tuple[int, ...]:
        """Return sums of the model's `tidal_flover_*` metric families."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            page = response.read().decode()
        return tuple(int(series_on(page, f"tidal_flover_{family}", self.model) or 0) for family in families)

    def memory_mib(self) -> float:
        """Return the resident memory of the model's process in MiB."""
        return float(psutil.Process(self.process).memory_info().rss / 2**20)


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of clients that cancelled.

    Attributes:
        cancelled: Number of clients that cancelled before the end of their text.
        waiting: Number of these without a slot.
        in_prompt: Number of these with a slot but no token.
        in_stream: Number of these whose text had begun.
        ended: Number of texts that ended before their client cancelled; another client replaced it.
        slots_lost: Number of slots allocated at the end by the metrics, or missing when each slot should run a text.
        open_requests: Number of requests open at the end by the metrics.
        others: Number of texts requested meanwhile by a client that does not cancel.
        others_harmed: Number of these that failed or differed.
        memory_before_mib: Resident memory of the model's process after the warm-up, in MiB.
        memory_after_mib: Resident memory at the end, in MiB.
        seconds: Total duration in seconds.
    """

    cancelled: int
    waiting: int
    in_prompt: int
    in_stream: int
    ended: int
    slots_lost: int
    open_requests: int
    others: int
    others_harmed: int
    memory_before_mib: float
    memory_after_mib: float
    seconds: float

    @property
    def memory_grown_mib(self) -> float:
        """Growth of the resident memory in MiB."""
        return self.memory_after_mib - self.memory_before_mib


def run(target: Target, *, count: int = 1000, warm_up: int = 300, seed: int = 0) -> Figures:
    """Run `count` clients that cancel, alternating between gRPC and HTTP, beside one that does not.

    Over gRPC a stream is cancelled, over HTTP the connection to `generate_stream` is closed. A client cancels at a
    random moment, at most 0.8 times the duration of its text on an idle server.

    Args:
        target: Model to test, without other clients.
        count: Number of clients that cancel.
        warm_up: Number of clients that cancel before the count starts, until the process has reached its memory size.
        seed: Seed of prompts and moments.
    """
    return asyncio.run(_run(target, count, warm_up, random.Random(seed)))


async def _run(target: Target, count: int, warm_up: int, luck: random.Random) -> Figures:
    began = time.monotonic()
    async with AsyncClient(target.grpc) as grpc, AsyncClient(target.http) as http:
        clients = itertools.cycle((grpc, http))
        longest_s = await _single_text_s(target, grpc)
        await _cancel_clients(target, clients, warm_up, luck, longest_s)
        await _wait_until_idle(target, grpc)
        memory, counted = target.memory_mib(), _counts(target)
        done = asyncio.Event()
        staying = asyncio.create_task(_compare_staying(target, grpc, done))
        ended = await _cancel_clients(target, clients, count, luck, longest_s)
        done.set()
        others, harmed = await staying
        taken, _ = await _wait_until_idle(target, grpc)
        admitted, begun = (now - then for now, then in zip(_counts(target), counted, strict=True))
        grown = target.memory_mib()
        missing = target.slots - await _concurrent_texts(target, grpc)
        still_taken, open_requests = await _wait_until_idle(target, grpc)
    waiting, in_prompt = count + ended + others - admitted, admitted - begun
    return Figures(
        cancelled=count,
        waiting=waiting,
        in_prompt=in_prompt,
        in_stream=count - waiting - in_prompt,
        ended=ended,
        slots_lost=max(taken, still_taken, missing),
        open_requests=open_requests,
        others=others,
        others_harmed=harmed,
        memory_before_mib=memory,
        memory_after_mib=grown,
        seconds=time.monotonic() - began,
    )


async def _single_text_s(target: Target, client: AsyncClient) -> float:
    """Seconds of a text of the largest length on the idle server; a random model may end it early."""
    began = time.monotonic()
    found = await client.generate(target.model, [1], max_tokens=target.longest_text)
    return (time.monotonic() - began) / len(found.tokens) * target.longest_text


async def _cancel_clients(
    target: Target, clients: Iterator[AsyncClient], count: int, luck: random.Random, longest_s: float
) -> int:
    """Run clients until `count` have cancelled; returns the number of texts that ended before."""
    left = ended = 0

    async def one_after_the_other() -> None:
        nonlocal left, ended, longest_s
        while left < count:
            left += 1
            prompt = [luck.randrange(target.vocabulary) for _ in range(luck.randint(1, target.longest_prompt))]
            try:
                async with asyncio.timeout(luck.random() * 0.8 * longest_s):
                    await _read(target, next(clients), prompt)
            except TimeoutError:
                continue
            left, ended = left - 1, ended + 1
            longest_s *= _SOONER  # it was measured once, perhaps in a slow moment
            if ended > count:
                raise RuntimeError(f"{target.model} ends its texts before a client can cancel")

    await asyncio.gather(*(one_after_the_other() for _ in range(_OPEN * target.slots)))
    return ended


async def _read(target: Target, client: AsyncClient, prompt: Sequence[int]) -> None:
    parts = client.generate_stream(target.model, prompt, max_tokens=target.longest_text)
    async with aclosing(parts):
        async for _ in parts:
            pass


async def _compare_staying(target: Target, client: AsyncClient, done: asyncio.Event) -> tuple[int, int]:
    """Request the same text until `done`; returns the number of requests, and of those that failed or differed."""
    texts: list[tuple[int, ...] | None] = []
    while not done.is_set() or not texts:
        try:
            texts.append((await client.generate(target.model, [1, 2, 3], max_tokens=8)).tokens)
        except RequestError:
            texts.append(None)
    return len(texts), sum(text is None or text != texts[0] for text in texts)


async def _concurrent_texts(target: Target, client: AsyncClient) -> int:
    """Number of texts that run at the same time; should be one per slot."""
    begun, all_begun = 0, asyncio.Event()

    async def run_text() -> None:
        nonlocal begun
        parts = client.generate_stream(target.model, [1], max_tokens=target.longest_text)
        async with aclosing(parts):
            await anext(parts)
            begun += 1
            if begun == target.slots:
                all_begun.set()
            await all_begun.wait()

    with suppress(TimeoutError, RequestError):
        async with asyncio.timeout(_IDLE_TIMEOUT_S):
            await asyncio.gather(*(run_text() for _ in range(target.slots)))
    return begun


async def _wait_until_idle(target: Target, client: AsyncClient) -> tuple[int, int]:
    """Wait until the model is idle or a timeout passes; returns the slots allocated and requests open.

    Metrics are published with a delay. An invalid request is sent first: metrics that count it are current.
    """
    (refused,) = target.published("refused_requests_total")
    with suppress(InvalidArgument):
        await client.generate(target.model, [target.vocabulary])
    until = time.monotonic() + _IDLE_TIMEOUT_S
    while True:
        now, taken, still_open = target.published("refused_requests_total", "taken_slots", "in_flight_queries")
        if (now > refused and taken == still_open == 0) or time.monotonic() > until:
            return taken, still_open
        await asyncio.sleep(0.1)


def _counts(target: Target) -> tuple[int, ...]:
    """Number of generations with slots, and with a first token, since the start."""
    return target.published("queue_seconds_count", "time_to_first_token_seconds_count")


def target_of(server: RunningServer, model: str) -> Target:
    """A model of a running `tidal serve`."""
    version = ModelEntry(server.state.repository / model).latest()
    assert version is not None
    manifest = load_flover_manifest(version)
    (process,) = (stub.pid for stub in live_stubs(server.state.server_pid) if stub.model == model)
    return Target(
        model,
        server.http,
        server.grpc,
        server.state.metrics,
        process,
        manifest.max_concurrency,
        manifest.max_length,
        manifest.form.vocabulary,
    )


def main() -> int:
    """Serve, measure, print; the exit code is 1 where a slot was lost, a request stays open, or another was harmed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flover.cancels", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=1000, help="number of clients that cancel")
    arguments = parser.parse_args()
    with tidal_serve(arguments.repository, "--model", arguments.model) as server:
        found = run(target_of(server, arguments.model), count=arguments.count)
    for name, value in {**asdict(found), "memory_grown_mib": found.memory_grown_mib}.items():
        print(f"{name:20}{value:10.1f}" if isinstance(value, float) else f"{name:20}{value:8}")
    return 1 if found.slots_lost or found.open_requests or found.others_harmed else 0


if __name__ == "__main__":
    sys.exit(main())
