"""Sending a load, each request a stream of its own, and noting when its tokens come."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from benchmarks.flover.load import Load
from tidal_client import AsyncClient

# Seconds that may pass until the next tokens: the slowest system has others before a request.
_TIMEOUT_S = 900.0


@dataclass(slots=True)
class Trace:
    """What one request got.

    Attributes:
        begun_s: when it was to be sent, after the load's beginning.
        parts: when tokens came, and how many.
        tokens: all of them.
    """

    begun_s: float
    parts: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def send(url: str, model: str, load: Load) -> list[Trace]:
    """Send every request at its time.

    Raises:
        RuntimeError: one got other than as many tokens as it wanted.
    """
    return asyncio.run(_send(url, model, load))


def warm_up(url: str, model: str, load: Load, tokens: int = 4) -> list[Trace]:
    """Let a model make its first passes: all prompts of a load at once, which fill a batch, for few tokens each."""
    return send(url, model, Load(load.name, (0.0,) * len(load), load.prompts, (tokens,) * len(load)))


async def _send(url: str, model: str, load: Load) -> list[Trace]:
    async with AsyncClient(url, timeout_s=_TIMEOUT_S) as client:
        await client.ready(model)  # the connection is there
        begin = time.monotonic()

        async def one(number: int) -> Trace:
            trace = Trace(load.times[number])
            await asyncio.sleep(max(0.0, begin + trace.begun_s - time.monotonic()))
            parts = client.generate_stream(model, load.prompts[number], max_tokens=load.wanted[number])
            async with aclosing(parts):
                async for part in parts:
                    if part.tokens:
                        trace.parts.append((time.monotonic() - begin, len(part.tokens)))
                        trace.tokens += part.tokens
            if len(trace.tokens) != load.wanted[number]:
                wanted = load.wanted[number]
                raise RuntimeError(f"{model} gave {len(trace.tokens)} tokens where {wanted} were asked for")
            return trace

        running = [asyncio.create_task(one(number)) for number in range(len(load))]
        try:
            return await asyncio.gather(*running)
        finally:
            for task in running:  # where one has failed
                task.cancel()
