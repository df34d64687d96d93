"""Sends a load, one stream per request, and records when tokens arrive."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from benchmarks.flover.load import FloverLoad
from tidal_client import AsyncClient

# Longest time until the next tokens: the slowest system runs other requests first.
_TIMEOUT_S = 900.0


@dataclass(slots=True)
class Trace:
    """The tokens of one request.

    Attributes:
        begun_s: Planned time of sending in seconds after the start of the load.
        parts: Arrival time in seconds and number of tokens of each part.
        tokens: All tokens.
    """

    begun_s: float
    parts: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def send(url: str, model: str, load: FloverLoad) -> list[Trace]:
    """Send every request of a load at its time.

    Args:
        url: gRPC URL of the server.
        model: Name of the model.
        load: Load to send.

    Raises:
        RuntimeError: A request received a wrong number of tokens.
    """
    return asyncio.run(_send(url, model, load))


def warm_up(url: str, model: str, load: FloverLoad, tokens: int = 4) -> list[Trace]:
    """Run the first passes of a model: all prompts of a load at once, for few tokens each."""
    return send(url, model, FloverLoad(load.name, (0.0,) * len(load), load.prompts, (tokens,) * len(load)))


async def _send(url: str, model: str, load: FloverLoad) -> list[Trace]:
    async with AsyncClient(url, timeout_s=_TIMEOUT_S) as client:
        await client.ready(model)  # opens the connection
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
                raise RuntimeError(f"{model} returned {len(trace.tokens)} tokens; requested were {wanted}")
            return trace

        running = [asyncio.create_task(one(number)) for number in range(len(load))]
        try:
            return await asyncio.gather(*running)
        finally:
            for task in running:  # if one has failed
                task.cancel()
