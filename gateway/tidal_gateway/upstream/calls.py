"""A request on its way: what the client's request needs, and each call of a server that it leads to."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidal_gateway.upstream.outages import Outage

if TYPE_CHECKING:
    from tidal_gateway.tracing import RequestTrace


class ProcessDied(Exception):
    """The process that had the request has died, so the request has no answer and may be sent again."""


@dataclass(slots=True)
class Outgoing:
    """A request to send.

    Attributes:
        message: The `ModelInferRequest`; a retry replaces its `latency_ms` by the rest.
        deadline: Time of the last attempt's end, by `time.monotonic()`, in seconds.
        affinity: See `choose`.
        retries: Number of retries so far.
        trace: Spans of the client's request; None if it is not traced.
        lost: Number of processes that died while they may have had the request.
        outages: Numbers of the outages after which it was sent again.
    """

    message: Any
    deadline: float
    affinity: str = ""
    retries: int = 0
    trace: RequestTrace | None = None
    lost: int = 0
    outages: set[int] = field(default_factory=set)

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.message.model_name)

    def left_s(self) -> float:
        """Seconds until the deadline, at least a millisecond."""
        return max(0.001, self.deadline - time.monotonic())

    def shorten(self) -> None:
        """Replace the deadline that is sent along by its rest."""
        parameters = self.message.parameters
        if "latency_ms" in parameters:
            parameters["latency_ms"].double_param = self.left_s() * 1e3


class Call:
    """A request that was sent to a server.

    Args:
        model: Name of the model.
        restarts: Number of restarts of the model's processes before it was sent.
        task: Task that waits for the answer.
        tried: Outage whose end the call tries; None for none.

    Attributes:
        sent: Time at which it was sent, by `time.monotonic()`, in seconds.
        begun: Whether a part of the answer has arrived.
        died: Outage in which its process ended; None if it has not.
    """

    __slots__ = ("begun", "died", "model", "restarts", "sent", "task", "tried")

    def __init__(self, model: str, restarts: int, task: asyncio.Task[Any] | None, tried: Outage | None = None) -> None:
        self.model, self.restarts, self.task, self.tried = model, restarts, task, tried
        self.sent = time.monotonic()
        self.begun = False
        self.died: Outage | None = None
