"""Texts, requests and versions for tests of `arlo` models on a server."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from testing.waiting import until
from tests.arlo.conftest import MAX_LENGTH
from tidal.repository.entries import ModelEntry
from tidal_client import AsyncClient, RequestError

# Pause of a client between requests: a load that leaves processor time to what happens under it.
PAUSE_S = 0.04
WORDS = ("please", "book", "cancel", "change", "flight", "hotel", "weather", "music", "song", "actor", "good", "bad")


def make_texts(count: int, seed: int, longest: int = MAX_LENGTH - 2) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


def text_rows(*rows: bytes) -> dict[str, Any]:
    return {"text_input": np.array(rows, object)[:, None]}


def publish_again(entry: ModelEntry) -> int:
    """Publish the newest version's files as a new version; return its number."""
    latest = entry.latest()
    assert latest is not None
    staging = entry.new_staging()
    shutil.copytree(latest, staging, dirs_exist_ok=True)
    return entry.publish(staging)


async def query_until(url: str, model: str, done: Callable[[], bool]) -> tuple[int, list[str]]:
    """Keep eight queries in flight until `done`; return their number and the failures."""
    sent, failures = 0, list[str]()
    texts = make_texts(64, seed=9)
    async with AsyncClient(url, timeout_s=30) as client:

        async def one() -> None:
            nonlocal sent
            while not done():
                sent += 1
                try:
                    await client.classify(model, texts[sent % len(texts)], outputs=["label"])
                except RequestError as error:
                    failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(PAUSE_S)

        await asyncio.gather(*(one() for _ in range(8)))
    return sent, failures


class Traffic:
    """Sends queries of all lengths, eight at a time, while a block runs; counts them and collects failures."""

    def __init__(self, url: str, model: str) -> None:
        self.sent = self.answered = 0
        self.failures: list[str] = []
        self._url, self._model = url, model
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Traffic:
        self._thread.start()
        assert until(lambda: self.sent > 50)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    async def _run(self) -> None:
        texts = make_texts(64, seed=9)
        async with AsyncClient(self._url, timeout_s=30) as client:

            async def one() -> None:
                while not self._done.is_set():
                    self.sent += 1
                    try:
                        await client.classify(self._model, texts[self.sent % len(texts)], outputs=["label"])
                        self.answered += 1
                    except RequestError as error:
                        self.failures.append(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(PAUSE_S)

            await asyncio.gather(*(one() for _ in range(8)))
