"""Adds and removes tasks while other tasks receive requests, and counts failed requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pets.waves import as_input
from benchmarks.texts import TextMaker
from tidal.pets.tasks.folder import copy_task
from tidal.pets.terms import BaseLayers
from tidal.server.child import RunningServer
from tidal.tasks.folder import remove_task
from tidal_client import AsyncClient

_CLIENTS = 16
_TOKENS = 16
_PAUSE_S = 0.05


@dataclass(slots=True)
class Changes:
    """Result of task changes under load.

    Attributes:
        added: Number of added tasks.
        removed: Number of removed tasks.
        sent: Number of requests sent, to added tasks and to others.
        failed: Number of failed requests.
        first_error: First failure; "" if there was none.
        seconds: Duration.
    """

    added: int = 0
    removed: int = 0
    sent: int = 0
    failed: int = 0
    first_error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Changes to make, and requests to send meanwhile.

    Attributes:
        model: Name of the model.
        tasks: Folder of its served tasks.
        steady: Names of tasks that stay and receive requests without a pause.
        coming: Folders of tasks that are added, receive requests at once, and are removed.
        seconds: Duration.
    """

    model: str
    tasks: Path
    steady: Sequence[str]
    coming: Sequence[Path]
    seconds: float


def measure(server: RunningServer, plan: ChangePlan, base: BaseLayers, maker: TextMaker) -> Changes:
    """Execute a plan on a server on which the model is loaded."""
    return asyncio.run(_run(server.grpc, plan, base, maker))


async def _run(url: str, plan: ChangePlan, base: BaseLayers, maker: TextMaker) -> Changes:
    found = Changes()
    begin = time.monotonic()
    until = begin + plan.seconds
    async with AsyncClient(url, timeout_s=60) as client:

        async def ask(task: str) -> None:
            found.sent += 1
            inputs = {"text_input": as_input([maker.text(_TOKENS)])}
            try:
                await client.infer(plan.model, inputs, outputs=["label"], task=task)
            except Exception as error:
                found.failed += 1
                found.first_error = found.first_error or f"{task}: {error}"

        async def keep_asking(number: int) -> None:
            while time.monotonic() < until:
                await ask(plan.steady[number % len(plan.steady)])
                number += 1

        async def change() -> None:
            number = 0
            while time.monotonic() < until:
                place = number % len(plan.coming)
                name = f"coming-{place}"
                number += 1
                await asyncio.to_thread(copy_task, plan.tasks, name, plan.coming[place], base)
                found.added += 1
                # A task is available as soon as its folder exists.
                await asyncio.gather(*(ask(name) for _ in range(3)))
                await asyncio.to_thread(remove_task, plan.tasks, name)
                found.removed += 1
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(change(), *(keep_asking(first) for first in range(_CLIENTS)))
    found.seconds = time.monotonic() - begin
    return found
