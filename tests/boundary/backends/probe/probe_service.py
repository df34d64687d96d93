"""The service of the `probe` backend. Its only worker performs the action named by a request's first row.

reply · sleep MS · until-file PATH (answered once it exists)
hold (never answered) · release (answer all held requests) · block (the worker hangs)
raise-in-submit · raise-in-thread · fail-starts N (the next N starts of a service fail)
drop · twice · no-output · wrong-rows · wrong-type · bad-array
check-cancelled (other threads check for cancellation during the reply)
until-cancelled · cancelled (number of cancelled requests) · cost N (µs per call of `cancelled()`, over N calls)
process (the stub's process id) · open (number of held and waiting requests)
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tidal.errors import Cancelled, InvalidArgument, Unavailable
from tidal.requests import Array, PendingRequest
from tidal.service import ServiceContext


class ProbeParameters(BaseModel):
    """Parameters of the `probe` backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    note: str = Field("", description="put after every echo")
    limit: int = Field(8, ge=1, le=64, description="a number to check")


class Memory:
    """State that outlives a service."""

    failing_starts = 0
    cancelled = 0


class ProbeService:
    """One worker, and one thread per sleeping request."""

    def __init__(self, context: ServiceContext, parameters: ProbeParameters, memory: Memory) -> None:
        if memory.failing_starts:
            memory.failing_starts -= 1
            raise RuntimeError("no start as asked")
        self._context = context
        self._note = parameters.note
        self._memory = memory
        self._inbox: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._held: list[PendingRequest] = []
        self._waiting: list[threading.Thread] = []
        self._closing = threading.Event()
        self._worker = context.start_thread("worker", self._work)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        for request in requests:
            if _action(request).startswith("raise-in-submit"):
                raise ValueError("raised in submit")
            if self._closing.is_set():
                request.fail(Unavailable("the probe is closing"))
            self._inbox.put(request)

    def close(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        self._closing.set()
        self._inbox.put(None)
        for thread in (self._worker, *self._waiting):
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (request := self._inbox.get()) is not None:
            action, _, argument = _action(request).partition(" ")
            wait = {
                "sleep": self._sleep, "until-file": self._until_file, "until-cancelled": self._until_cancelled
            }.get(action)  # fmt: skip
            if wait is not None:
                thread = threading.Thread(target=wait, args=(request, argument), daemon=True)
                self._waiting = [t for t in self._waiting if t.is_alive()] + [thread]
                thread.start()
            else:
                self._act(action, argument, request)
            del request  # otherwise a dropped one would live until the next

    def _act(self, action: str, argument: str, request: PendingRequest) -> None:
        if action in ("reply", ""):
            self._reply(request)
        elif action == "raise-in-thread":
            raise KeyError("raised in thread")
        elif action == "hold":
            self._held.append(request)
        elif action == "release":
            held, self._held = self._held, []
            for each in (*held, request):
                self._reply(each)
        elif action == "block":
            threading.Event().wait()
        elif action == "twice":
            self._reply(request)
            self._reply(request)
            request.fail(Unavailable("a second answer"))
        elif action == "no-output":
            request.reply({"unheard-of": np.zeros((request.rows, 1), np.int32)})
        elif action == "wrong-rows":
            request.reply({name: np.zeros((request.rows + 1, 1), np.int32) for name in request.wanted})
        elif action == "wrong-type":
            request.reply({name: np.zeros((request.rows, 1), np.float32) for name in request.wanted})
        elif action == "bad-array":
            request.reply({name: np.zeros((request.rows, 1), np.complex64) for name in request.wanted})
        elif action == "cancelled":
            self._reply(request, f"{self._memory.cancelled}")
        elif action == "fail-starts":
            self._memory.failing_starts = int(argument)
            self._reply(request)
        elif action == "process":
            self._reply(request, f"{os.getpid()}")
        elif action == "open":
            waiting = sum(thread.is_alive() for thread in self._waiting)
            self._reply(request, f"{waiting + len(self._held)}")
        elif action == "check-cancelled":
            self._check_cancelled(request)
        elif action == "cost":
            began = time.perf_counter()
            for _ in range(int(argument)):
                request.cancelled()
            self._reply(request, f"{(time.perf_counter() - began) / int(argument) * 1e6:.2f}")
        elif action != "drop":
            request.fail(InvalidArgument(f"unknown action '{action}'"))

    def _sleep(self, request: PendingRequest, argument: str) -> None:
        time.sleep(float(argument) / 1e3)
        self._reply(request)

    def _until_file(self, request: PendingRequest, argument: str) -> None:
        while not os.path.exists(argument):
            time.sleep(0.01)
        self._reply(request)

    def _until_cancelled(self, request: PendingRequest, argument: str) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if request.cancelled():
                self._memory.cancelled += 1
                request.fail(Cancelled("the client cancelled the request"))
                return
            time.sleep(0.01)

    def _check_cancelled(self, request: PendingRequest) -> None:
        def ask() -> None:
            while not request.answered:
                request.cancelled()

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        self._reply(request)
        for thread in threads:
            thread.join()

    def _reply(self, request: PendingRequest, text: str | None = None) -> None:
        outputs: dict[str, Array] = {}
        if request.wants("echo"):
            texts = request.inputs["action"] if text is None else np.full((request.rows, 1), text.encode(), object)
            outputs["echo"] = np.array([[each[0] + self._note.encode()] for each in texts], object)
        if request.wants("rows"):
            outputs["rows"] = np.full((request.rows, 1), request.rows, np.int32)
        if request.wants("wanted"):
            outputs["wanted"] = np.full((request.rows, 1), ",".join(sorted(request.wanted)).encode(), object)
        request.reply(outputs)


def _action(request: PendingRequest) -> str:
    return bytes(request.inputs["action"].reshape(-1)[0]).decode()


def load(context: ServiceContext, parameters: ProbeParameters) -> Callable[[ServiceContext], ProbeService]:
    memory = Memory()
    return lambda fresh: ProbeService(fresh, parameters, memory)
