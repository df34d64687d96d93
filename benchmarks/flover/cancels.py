"""Clients that leave at random moments: while they wait, while their prompt is read, in the middle of the stream.

`python -m benchmarks.flover.cancels REPOSITORY MODEL` lets 1,000 of them leave a built model.
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

#: So many times as many requests as there are slots are open at once: most wait.
_OPEN = 3
_LONGEST_PROMPT, _LONGEST_TEXT = 256, 128
_SETTLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """A served model, and where it is served.

    Attributes:
        http: URL for the client.
        grpc: likewise.
        metrics: host:port of /metrics.
        process: id of the process that the model runs in.
        slots: generations that it runs at once.
        max_length: tokens of a generation with its prompt.
        vocabulary: ids of tokens are below this.
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
        """Tokens of the longest prompt that is sent."""
        return min(_LONGEST_PROMPT, self.max_length // 4)

    @property
    def longest_text(self) -> int:
        """Tokens that a client asks for."""
        return min(_LONGEST_TEXT, self.max_length - self.longest_prompt)

    def published(self, *families: str) -> tuple[int, ...]:
        """The sums of some of the model's `tidal_flover_*` families, as a page of /metrics has them."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            page = response.read().decode()
        return tuple(int(series_on(page, f"tidal_flover_{family}", self.model) or 0) for family in families)

    def memory_mib(self) -> float:
        """Resident memory of the model's process."""
        return float(psutil.Process(self.process).memory_info().rss / 2**20)


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of clients that left.

    Attributes:
        cancelled: clients that left before their text's end.
        waiting: of them those that never had a slot.
        in_prompt: those that had a slot and no token.
        in_stream: those whose text had begun.
        ended: texts that came to their end before their client left; another one left in its place.
        slots_lost: slots that are taken in the end by the metrics, or missing when each slot is to hold a text.
        open_requests: requests that the model still works on in the end, by the metrics.
        others: whole texts that a client who stays asked for meanwhile.
        others_harmed: of them those that failed, or were another text.
        memory_before_mib: resident memory of the model's process when the first ones had left, which do not count.
        memory_after_mib: the same in the end.
        seconds: that all of it took.
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
        """How much memory the model's process has gained."""
        return self.memory_after_mib - self.memory_before_mib


def run(target: Target, *, count: int = 1000, warm_up: int = 300, seed: int = 0) -> Figures:
    """Let `count` clients leave, over gRPC and HTTP in turn, beside one that stays.

    Over gRPC a stream is cancelled, over HTTP the connection to `generate_stream` is closed. A client leaves at a
    random moment, at the latest after 0.8 of the time that its text would take if nobody else asked.

    Args:
        target: the model, which nobody else asks.
        count: clients that leave.
        warm_up: clients that leave before that, until the process has the memory that it needs.
        seed: of prompts and moments.
    """
    return asyncio.run(_run(target, count, warm_up, random.Random(seed)))


async def _run(target: Target, count: int, warm_up: int, luck: random.Random) -> Figures:
    began = time.monotonic()
    async with AsyncClient(target.grpc) as grpc, AsyncClient(target.http) as http:
        clients = itertools.cycle((grpc, http))
        longest_s = await _alone_s(target, grpc)
        await _leave(target, clients, warm_up, luck, longest_s)
        await _settled(target, grpc)
        memory, counted = target.memory_mib(), _counted(target)
        done = asyncio.Event()
        staying = asyncio.create_task(_stay(target, grpc, done))
        ended = await _leave(target, clients, count, luck, longest_s)
        done.set()
        others, harmed = await staying
        taken, _ = await _settled(target, grpc)
        admitted, begun = (now - then for now, then in zip(_counted(target), counted, strict=True))
        grown = target.memory_mib()
        missing = target.slots - await _side_by_side(target, grpc)
        still_taken, open_requests = await _settled(target, grpc)
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


async def _alone_s(target: Target, client: AsyncClient) -> float:
    """Seconds that a text of the greatest length takes where nobody else asks; a random model may end it early."""
    began = time.monotonic()
    found = await client.generate(target.model, [1], max_tokens=target.longest_text)
    return (time.monotonic() - began) / len(found.tokens) * target.longest_text


async def _leave(
    target: Target, clients: Iterator[AsyncClient], count: int, luck: random.Random, longest_s: float
) -> int:
    """Let clients leave until `count` have; gives how many texts came to their end before that."""
    left = ended = 0

    async def one_after_the_other() -> None:
        nonlocal left, ended
        while left < count:
            left += 1
            prompt = [luck.randrange(target.vocabulary) for _ in range(luck.randint(1, target.longest_prompt))]
            try:
                async with asyncio.timeout(luck.random() * 0.8 * longest_s):
                    await _read(target, next(clients), prompt)
            except TimeoutError:
                continue
            left, ended = left - 1, ended + 1
            if ended > count:
                raise RuntimeError(f"{target.model} ends its texts before anybody can leave")

    await asyncio.gather(*(one_after_the_other() for _ in range(_OPEN * target.slots)))
    return ended


async def _read(target: Target, client: AsyncClient, prompt: Sequence[int]) -> None:
    parts = client.generate_stream(target.model, prompt, max_tokens=target.longest_text)
    async with aclosing(parts):
        async for _ in parts:
            pass


async def _stay(target: Target, client: AsyncClient, done: asyncio.Event) -> tuple[int, int]:
    """Ask for one and the same text until `done`; gives how often, and how often something else came."""
    texts: list[tuple[int, ...] | None] = []
    while not done.is_set() or not texts:
        try:
            texts.append((await client.generate(target.model, [1, 2, 3], max_tokens=8)).tokens)
        except RequestError:
            texts.append(None)
    return len(texts), sum(text is None or text != texts[0] for text in texts)


async def _side_by_side(target: Target, client: AsyncClient) -> int:
    """How many texts hold a slot at the same time where there should be one for each slot."""
    begun, all_begun = 0, asyncio.Event()

    async def hold() -> None:
        nonlocal begun
        parts = client.generate_stream(target.model, [1], max_tokens=target.longest_text)
        async with aclosing(parts):
            await anext(parts)
            begun += 1
            if begun == target.slots:
                all_begun.set()
            await all_begun.wait()

    with suppress(TimeoutError, RequestError):
        async with asyncio.timeout(_SETTLED_S):
            await asyncio.gather(*(hold() for _ in range(target.slots)))
    return begun


async def _settled(target: Target, client: AsyncClient) -> tuple[int, int]:
    """Slots taken and requests open, when there are none or a while has passed.

    Metrics are published some times a second. So a request is refused first: a page that counts it is a new one.
    """
    (refused,) = target.published("refused_requests_total")
    with suppress(InvalidArgument):
        await client.generate(target.model, [target.vocabulary])
    until = time.monotonic() + _SETTLED_S
    while True:
        now, taken, still_open = target.published("refused_requests_total", "taken_slots", "in_flight_queries")
        if (now > refused and taken == still_open == 0) or time.monotonic() > until:
            return taken, still_open
        await asyncio.sleep(0.1)


def _counted(target: Target) -> tuple[int, ...]:
    """Generations so far that got a slot, and that got a token."""
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
    parser.add_argument("--count", type=int, default=1000, help="clients that leave")
    arguments = parser.parse_args()
    with tidal_serve(arguments.repository, "--model", arguments.model) as server:
        found = run(target_of(server, arguments.model), count=arguments.count)
    for name, value in {**asdict(found), "memory_grown_mib": found.memory_grown_mib}.items():
        print(f"{name:20}{value:10.1f}" if isinstance(value, float) else f"{name:20}{value:8}")
    return 1 if found.slots_lost or found.open_requests or found.others_harmed else 0


if __name__ == "__main__":
    sys.exit(main())
