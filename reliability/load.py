"""Background load: requests to all models at the same time, over both protocols, for the duration of a block."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reliability.models import ServedModel
from testing.loop_thread import LoopThread
from testing.waiting import until
from tidal_client import AsyncClient, RequestError

OK = "OK"


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that has ended.

    Attributes:
        model: Name of the model.
        start: When it was sent, `time.monotonic()` seconds.
        end: When it ended, `time.monotonic()` seconds.
        outcome: `OK`, or code and message of the error.
    """

    model: str
    start: float
    end: float
    outcome: str

    @property
    def answered(self) -> bool:
        """Whether it was answered without an error."""
        return self.outcome == OK


class BackgroundLoad:
    """Clients that send requests to each model over each protocol, one after the other with a pause in between.

    Args:
        grpc: Address of the gRPC endpoint, `host:port`.
        http: Address of the HTTP endpoint, `host:port`.
        models: Models that receive requests.
        timeout_s: Time that a client waits for an answer, seconds.
        pause_s: Pause between two requests of a client, seconds.
    """

    def __init__(
        self, grpc: str, http: str, models: Sequence[ServedModel], *, timeout_s: float = 20.0, pause_s: float = 0.1
    ) -> None:
        self.sent: list[EndedRequest] = []
        self._urls = (f"grpc://{grpc}", f"http://{http}")
        self._models, self._timeout_s, self._pause_s = tuple(models), timeout_s, pause_s
        self._thread = LoopThread("reliability-load", self._run)

    def __enter__(self) -> BackgroundLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop sending, and wait for the requests in flight."""
        self._thread.end()

    def wait_for(self, requests: int, seconds: float = 120.0) -> bool:
        """Wait until a number of further requests have ended; return whether they did in time.

        Args:
            requests: Number of further requests.
            seconds: Maximum time to wait.
        """
        wanted = len(self.sent) + requests
        return until(lambda: len(self.sent) >= wanted, seconds)

    def failures(self, models: Iterable[str] | None = None) -> list[str]:
        """Return model and outcome of the requests that failed.

        Args:
            models: Names of the models; None: all.
        """
        wanted = None if models is None else set(models)
        return [
            f"{each.model}: {each.outcome}"
            for each in list(self.sent)
            if not each.answered and (wanted is None or each.model in wanted)
        ]

    def answered(self) -> Counter[str]:
        """Return the number of answers by model."""
        return Counter(each.model for each in self.sent if each.answered)

    async def _run(self) -> None:
        clients = [AsyncClient(url, timeout_s=self._timeout_s) for url in self._urls]
        try:
            await asyncio.gather(
                *(
                    self._send(client, model, 1000 * place + 500 * other)
                    for place, model in enumerate(self._models)
                    for other, client in enumerate(clients)
                )
            )
        finally:
            for client in clients:
                await client.close()

    async def _send(self, client: AsyncClient, model: ServedModel, number: int) -> None:
        while not self._thread.done.is_set():
            number += 1
            self.sent.append(await send(client, model, number))
            await asyncio.sleep(self._pause_s)


async def send(client: AsyncClient, model: ServedModel, number: int) -> EndedRequest:
    """Send one request, and return its outcome.

    Args:
        client: Client to send with.
        model: Model that receives it.
        number: Number that selects the query.
    """
    start = time.monotonic()
    try:
        await model.send(client, number)
    except RequestError as error:
        outcome = f"{error.code}: {error}"
    except Exception as error:  # a defect of the client is a failed request too
        outcome = f"{type(error).__name__}: {error}"
    else:
        outcome = OK
    return EndedRequest(model.name, start, time.monotonic(), outcome)
