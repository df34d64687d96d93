"""Tasks that are added and removed while others receive requests; new ones receive requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reliability.load import BackgroundLoad, send
from reliability.models import ServedModel, png, text
from reliability.rows import MIN_REQUESTS, Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from tidal.tasks.folder import remove_task, tasks_folder
from tidal_client import AsyncClient

_ROUNDS = 10
_KINDS = ("adapter", "bitfit", "diff_pruning", "lora", "maskbert")
_REQUESTS = 4

Change = tuple[ServedModel, Path, Callable[[Path, str], None]]


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Add a text task and an image task, send them requests over both protocols, and remove them, repeatedly."""
    rounds, changes = 2 if target.quick else _ROUNDS, 0
    with target.load() as load:
        load.wait_for(20)
        for number in range(rounds):
            name = f"coming-{number}"
            for model, tasks, add in _changes(target, number, name):
                add(tasks, name)
                asyncio.run(_send(target, load, model))
                remove_task(tasks, name)
                changes += 2
        load.wait_for(20 if target.quick else MIN_REQUESTS - len(load.sent))
    what = "tasks added, called and removed"
    return [none_failed(what, len(load.sent), changes, load.failures(), quick=target.quick)]


def _changes(target: ServerUnderTest, number: int, name: str) -> list[Change]:
    repository = target.repository
    by_name = {model.name: model for model in target.models}
    kind = _KINDS[number % len(_KINDS)]

    def add_text(tasks: Path, name: str) -> None:
        repository.base.add(tasks, kind, number, name)

    text_model = replace(by_name["tasks"], send=lambda c, n: c.classify("tasks", text(n), outputs=["label"], task=name))
    of_texts = text_model, tasks_folder(repository.folder / "tasks"), add_text
    if (vision := repository.vision) is None:
        return [of_texts]

    def add_image(tasks: Path, name: str) -> None:
        vision.add(tasks, name, 2 + number % 5)

    image_model = replace(
        by_name["images"], send=lambda c, n: c.classify_image("images", png(n), outputs=["label"], task=name)
    )
    return [of_texts, (image_model, tasks_folder(repository.folder / "images"), add_image)]


async def _send(target: ServerUnderTest, load: BackgroundLoad, model: ServedModel) -> None:
    report = target.served.report
    async with (
        AsyncClient(f"grpc://{report['grpc']}", timeout_s=20) as grpc,
        AsyncClient(f"http://{report['http']}", timeout_s=20) as http,
    ):
        found = await asyncio.gather(*(send(client, model, n) for n in range(_REQUESTS) for client in (grpc, http)))
    load.sent += found
