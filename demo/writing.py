"""Texts of the demo's tiny decoder: one as it is written, and several that are written at the same time."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tidal_client import Client

MODEL = "writer"
#: Sentences of the project's own pages, on which the decoder was trained, begin so.
PROMPTS = (
    "A client that",
    "A query that",
    "The engine",
    "Each query",
    "While it",
    "The small model",
    "Tokens",
    "The server",
)
MOST_TOKENS = 48
_PAGE_S = 20.0
_SAMPLE = re.compile(r"^tidal_flover_fused_generations_(sum|count)\{(.*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Written:
    """A text, and when its first part and its last one came, in milliseconds after it was asked for."""

    prompt: str
    text: str
    parts: int
    tokens: int
    ended_by: str
    first_ms: float
    all_ms: float


def write(client: Client, prompt: str, told: Callable[[str], None] = lambda _part: None) -> Written:
    """Stream one text.

    Args:
        client: of either protocol.
        prompt: what to go on from.
        told: told each part as it comes.
    """
    began, came, text = time.perf_counter(), list[float](), ""
    for part in client.generate_stream(MODEL, prompt, max_tokens=MOST_TOKENS):
        came.append((time.perf_counter() - began) * 1e3)
        text += part.text
        told(part.text)
    return Written(prompt, text, len(came), part.generated_tokens or 0, part.finish_reason or "", came[0], came[-1])


def write_together(http: Client, grpc: Client) -> list[tuple[str, Written]]:
    """Stream all prompts at the same time, half of them over each protocol, whose name comes with each."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        ways = [((http, "HTTP"), (grpc, "gRPC"))[number % 2] for number in range(len(PROMPTS))]
        running = [pool.submit(write, client, prompt) for (client, _), prompt in zip(ways, PROMPTS, strict=True)]
        return [(over, each.result()) for (_, over), each in zip(ways, running, strict=True)]


def fused(metrics: str, texts: int) -> tuple[float, float]:
    """Texts that took part in steps so far, and steps.

    Args:
        metrics: host:port of the server's /metrics, which is brought up to date some times a second.
        texts: at least so many took part, so that a page with fewer is an old one.

    Raises:
        TimeoutError: the page stays behind.
    """
    until = time.monotonic() + _PAGE_S
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
            found = _SAMPLE.findall(response.read().decode())
        ours = [(kind, float(value)) for kind, labels, value in found if f'model="{MODEL}"' in labels]
        took_part, steps = (sum(value for kind, value in ours if kind == wanted) for wanted in ("sum", "count"))
        if took_part >= texts:
            return took_part, steps
        time.sleep(0.1)
    raise TimeoutError(f"{took_part:g} texts took part in steps by the metrics, {texts} by their lengths")


def stepped(written: Iterable[Written]) -> int:
    """In how many steps texts took part, summed: their first tokens came of their prompts, each other one of a step."""
    return sum(each.tokens - 1 for each in written)
