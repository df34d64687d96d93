"""Requests to all models at once, over both protocols, for the length of a block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reliability.models import Model
from testing.waiting import until
from tidal_client import AsyncClient, RequestError

OK = "OK"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that has ended: times of `time.monotonic()`, and `OK` or the code and sentence of its error."""

    model: str
    start: float
    end: float
    outcome: str

    @property
    def answered(self) -> bool:
        """Whether it got its answer."""
        return self.outcome == OK


class Load:
    """Clients that ask each model over each protocol, one request after the other with a pause between.

    Args:
        grpc: `host:port`.
        http: `host:port`.
        models: who is asked.
        timeout_s: how long a client waits for an answer.
        pause_s: between two requests of a client.
    """

    def __init__(
        self, grpc: str, http: str, models: Sequence[Model], *, timeout_s: float = 20.0, pause_s: float = 0.1
    ) -> None:
        self.sent: list[Sent] = []
        self._urls = (f"grpc://{grpc}", f"http://{http}")
        self._models, self._timeout_s, self._pause_s = tuple(models), timeout_s, pause_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="reliability-load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more, and wait for what is in flight."""
        self._done.set()
        self._thread.join()

    def goes_on(self, requests: int, seconds: float = 120.0) -> bool:
        """Wait until as many requests more have ended."""
        aim = len(self.sent) + requests
        return until(lambda: len(self.sent) >= aim, seconds)

    def failures(self, models: Iterable[str] | None = None) -> list[str]:
        """What became of requests that were not answered, to these models or to all."""
        wanted = None if models is None else set(models)
        return [
            f"{each.model}: {each.outcome}"
            for each in list(self.sent)
            if not each.answered and (wanted is None or each.model in wanted)
        ]

    def answered(self) -> Counter[str]:
        """Answers by model."""
        return Counter(each.model for each in self.sent if each.answered)

    async def _run(self) -> None:
        clients = [AsyncClient(url, timeout_s=self._timeout_s) for url in self._urls]
        try:
            await asyncio.gather(
                *(
                    self._ask(client, model, 1000 * place + 500 * other)
                    for place, model in enumerate(self._models)
                    for other, client in enumerate(clients)
                )
            )
        finally:
            for client in clients:
                await client.close()

    async def _ask(self, client: AsyncClient, model: Model, number: int) -> None:
        while not self._done.is_set():
            number += 1
            self.sent.append(await ask(client, model, number))
            await asyncio.sleep(self._pause_s)


async def ask(client: AsyncClient, model: Model, number: int) -> Sent:
    """One request and what became of it."""
    start = time.monotonic()
    try:
        await model.ask(client, number)
    except RequestError as error:
        outcome = f"{error.code}: {error}"
    except Exception as error:  # a defect of the client is a failed request too
        outcome = f"{type(error).__name__}: {error}"
    else:
        outcome = OK
    return Sent(model.name, start, time.monotonic(), outcome)
