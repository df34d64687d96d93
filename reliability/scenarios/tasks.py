"""Tasks added and removed while others are asked; new ones are asked as soon as they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reliability.bench import Bench
from reliability.load import Load, ask
from reliability.models import Model, png, text
from reliability.rows import LEAST_REQUESTS, Row, none_failed
from tidal.tasks.folder import remove_task, tasks_folder
from tidal_client import AsyncClient

_ROUNDS = 10
_KINDS = ("adapter", "bitfit", "diff_pruning", "lora", "maskbert")
_ASKED = 4

Change = tuple[Model, Path, Callable[[Path, str], None]]


def run(bench: Bench) -> list[Row]:
    """Add a text task and an image task, ask them over both protocols, remove them; again and again."""
    rounds, changes = 2 if bench.quick else _ROUNDS, 0
    with bench.load() as load:
        load.goes_on(20)
        for number in range(rounds):
            name = f"coming-{number}"
            for model, tasks, add in _changes(bench, number, name):
                add(tasks, name)
                asyncio.run(_ask(bench, load, model))
                remove_task(tasks, name)
                changes += 2
        load.goes_on(20 if bench.quick else LEAST_REQUESTS - len(load.sent))
    what = "tasks added, asked and removed"
    return [none_failed(what, len(load.sent), changes, load.failures(), quick=bench.quick)]


def _changes(bench: Bench, number: int, name: str) -> list[Change]:
    repository = bench.repository
    by_name = {model.name: model for model in bench.models}
    kind = _KINDS[number % len(_KINDS)]

    def add_text(tasks: Path, name: str) -> None:
        repository.base.add(tasks, kind, number, name)

    text_model = replace(by_name["tasks"], ask=lambda c, n: c.classify("tasks", text(n), outputs=["label"], task=name))
    of_texts = text_model, tasks_folder(repository.folder / "tasks"), add_text
    if (vision := repository.vision) is None:
        return [of_texts]

    def add_image(tasks: Path, name: str) -> None:
        vision.add(tasks, name, 2 + number % 5)

    image_model = replace(
        by_name["images"], ask=lambda c, n: c.classify_image("images", png(n), outputs=["label"], task=name)
    )
    return [of_texts, (image_model, tasks_folder(repository.folder / "images"), add_image)]


async def _ask(bench: Bench, load: Load, model: Model) -> None:
    report = bench.served.report
    async with (
        AsyncClient(f"grpc://{report['grpc']}", timeout_s=20) as grpc,
        AsyncClient(f"http://{report['http']}", timeout_s=20) as http,
    ):
        found = await asyncio.gather(*(ask(client, model, n) for n in range(_ASKED) for client in (grpc, http)))
    load.sent += found
