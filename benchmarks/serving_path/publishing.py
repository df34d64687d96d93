"""Publishes and loads new versions while clients send queries."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from benchmarks.texts import TextMaker, tweet_lengths
from tidal.repository.entries import ModelEntry
from tidal.server.child import RunningServer
from tidal_client import AsyncClient


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Result of publishing under load.

    Attributes:
        sent: Number of queries sent.
        failed: Number of queries that failed, timeouts included.
        changes: Number of versions published and loaded.
        first_error: First failure; "" if there was none.
    """

    sent: int
    failed: int
    changes: int
    first_error: str


def measure(
    server: RunningServer, repository: Path, model: str, maker: TextMaker, *, changes: int, at_least: int
) -> PublishResult:
    """Publish copies of the latest version under new numbers and load each one, under load.

    Args:
        server: Running server.
        repository: Model repository.
        model: Name of the model.
        maker: Generator of texts.
        changes: Number of versions to publish.
        at_least: Lower bound of the number of queries.
    """
    finished = threading.Event()

    def publish() -> None:
        entry = ModelEntry(repository / model)
        try:
            for _ in range(changes):
                latest = entry.latest()
                assert latest is not None
                staging = entry.new_staging()
                shutil.copytree(latest, staging, dirs_exist_ok=True)
                entry.publish(staging)
                server.control.load(model, None)
        finally:
            finished.set()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        return asyncio.run(_load(server.grpc, model, maker, finished, at_least, changes))
    finally:
        thread.join()


async def _load(
    url: str, model: str, maker: TextMaker, finished: threading.Event, at_least: int, changes: int
) -> PublishResult:
    sent, errors = 0, list[str]()
    lengths = iter(tweet_lengths(100_000, seed=11, data=None)[0])
    async with AsyncClient(url) as client:

        async def one() -> None:
            nonlocal sent
            while not finished.is_set() or sent < at_least:
                sent += 1
                try:
                    await client.classify(model, maker.text(next(lengths)), outputs=["label"])
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}")

        await asyncio.gather(*(one() for _ in range(8)))
    return PublishResult(sent, len(errors), changes, errors[0] if errors else "")
