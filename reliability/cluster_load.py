"""Load on a cluster of two nodes: clients with both entrances, and clients of the entrance that is not lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reliability.load import OK
from reliability.models import text
from testing.loop_thread import LoopThread
from testing.waiting import until
from tidal_client import AsyncClient, Client, RequestError

TEXTS = 64
# Longer than the pause of a node, which clients of its entrance wait for.
DEADLINE_S = 15.0
_TIMEOUT_S = 20.0
_RETRIES = 8
_PAUSE_S = 0.25
# Queries that a client sends at the same time: of one at a time, none would wait, so none would go to another node.
_TOGETHER = 3

#: Logits of each text, by model.
Answers = Mapping[str, Sequence[npt.NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A request that has ended.

    Attributes:
        id: Id that the request log has.
        start: When it was sent, `time.monotonic()` seconds.
        end: When it ended, `time.monotonic()` seconds.
        outcome: `OK`, or what was wrong.
        one_entrance: Whether its client knows only the entrance that is not lost.
    """

    id: str
    start: float
    end: float
    outcome: str
    one_entrance: bool

    @property
    def seconds(self) -> float:
        """Time until it ended, in seconds."""
        return self.end - self.start

    def in_flight(self, begin: float, end: float) -> bool:
        """Whether it was in flight at some moment between two."""
        return self.start <= end and self.end >= begin


class ClusterLoad:
    """Clients that send queries to models until the block ends, a few at a time, with a pause in between.

    Some have both entrances, over gRPC and HTTP, and retry; one has only the first entrance, and does not.

    Args:
        grpc: Addresses of the gRPC endpoints, `host:port`, that of the entrance which is not lost first.
        http: Addresses of the HTTP endpoints.
        right: Logits of each text by model, which answers are compared with.
        name: Beginning of the requests' ids, unique among all loads.
    """

    def __init__(self, grpc: Sequence[str], http: Sequence[str], right: Answers, name: str) -> None:
        self.sent: list[ClusterRequest] = []
        both = [[f"grpc://{each}" for each in grpc], [f"http://{each}" for each in http]]
        self._clients = [*((urls, _RETRIES) for urls in both), (both[0][:1], 0)]
        self._right, self._name = right, name
        self._thread = LoopThread("cluster-load", self._run)

    def __enter__(self) -> ClusterLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.end()

    @property
    def failures(self) -> list[str]:
        """Outcomes of the requests that failed."""
        return [f"{each.id}: {each.outcome}" for each in list(self.sent) if each.outcome != OK]

    def wait_for(self, requests: int, seconds: float = 120.0) -> bool:
        """Wait until so many requests have ended since the load began; return whether they have in time."""
        return until(lambda: len(self.sent) >= requests, seconds)

    async def _run(self) -> None:
        clients = [AsyncClient(urls, timeout_s=_TIMEOUT_S, retries=retries) for urls, retries in self._clients]
        try:
            await asyncio.gather(
                *(
                    self._send(client, model, f"{self._name}-{model}-{place}", one_entrance=place == len(clients) - 1)
                    for place, client in enumerate(clients)
                    for model in self._right
                )
            )
        finally:
            for client in clients:
                await client.close()

    async def _send(self, client: AsyncClient, model: str, name: str, *, one_entrance: bool) -> None:
        number = 0
        while not self._thread.done.is_set():
            numbers = range(number, number + _TOGETHER)
            await asyncio.gather(*(self._one(client, model, n, f"{name}-{n}", one_entrance) for n in numbers))
            number += _TOGETHER
            await asyncio.sleep(_PAUSE_S)

    async def _one(self, client: AsyncClient, model: str, number: int, name: str, one_entrance: bool) -> None:
        start, place = time.monotonic(), number % TEXTS
        try:
            answer = await client.classify(
                model, text(place), outputs=["logits"], request_id=name, latency_ms=DEADLINE_S * 1e3
            )
            outcome = OK if is_answer(self._right[model], place, answer.logits) else "the answer to another query"
        except RequestError as error:
            outcome = f"{error.code}: {error}"
        except Exception as error:  # a defect of the client is a failed request too
            outcome = f"{type(error).__name__}: {error}"
        self.sent.append(ClusterRequest(name, start, time.monotonic(), outcome, one_entrance))


def right_answers(grpc: str, models: Sequence[str]) -> Answers:
    """Return the logits of all texts, each asked alone.

    Args:
        grpc: Address of the gRPC endpoint, `host:port`.
        models: Names of the models.
    """
    with Client(f"grpc://{grpc}", timeout_s=60.0, retries=_RETRIES) as client:
        return {
            model: [_logits(client.classify(model, text(place), outputs=["logits"]).logits) for place in range(TEXTS)]
            for model in models
        }


def is_answer(right: Sequence[npt.NDArray[np.float32]], place: int, logits: npt.NDArray[np.float32] | None) -> bool:
    """Whether logits are those of a text and not of another one: none is closer to them.

    Runtimes differ in the last digits, so equality is not asked for.

    Args:
        right: Logits of all texts.
        place: Number of the text.
        logits: Logits of the answer.
    """
    if logits is None:
        return False
    distances = np.abs(np.stack(right) - logits).max(axis=1)
    return bool(distances[place] <= distances.min() + 1e-6)


def answered_twice(log: Path, models: Collection[str], uncertain: Collection[str]) -> list[str]:
    """Return the ids of requests that entrances answered more than once.

    Args:
        log: Request log of all entrances.
        models: Names of the models that clients send requests to.
        uncertain: Ids of requests whose first answer may have been lost with its connection: their clients rightly
            sent them again.
    """
    answers: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        try:
            fields = json.loads(line)
        except ValueError:  # the process was killed while it wrote
            continue
        if fields["code"] == OK and fields["model"] in models and fields["id"]:
            answers[fields["id"]] += 1
    return sorted(name for name, count in answers.items() if count > 1 and name not in uncertain)


def _logits(found: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float32]:
    if found is None:
        raise RuntimeError("an answer has no logits")
    return found
