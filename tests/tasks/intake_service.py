"""A service in place of those that an intake hands requests over to, with tasks that take no memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from testing.requests import FakeRequest, make_context
from tidal.errors import InvalidArgument, TidalError
from tidal.metrics import Metrics
from tidal.serving.endings import model_stops
from tidal.tasks.folder import Stamp
from tidal.tasks.intake import Intake, Named, read_each
from tidal.tasks.lease import Lease
from tidal.tasks.library import TaskLibrary
from tidal.tasks.metrics import IntakeMetrics


@dataclass(frozen=True)
class Task:
    name: str
    bytes: int = 1


@dataclass(frozen=True)
class Text:
    """A request that was read."""

    request: Any
    task: str | None


def ask(task: str | None, **named: Any) -> FakeRequest:
    """A request for a task; one that is `slow` is read by a reader thread, and one with an `error` cannot be read."""
    return FakeRequest(named, **({} if task is None else {"task": task}))


@dataclass
class Service:
    """What an intake hands over to, and its tasks.

    Attributes:
        calls: Requests of each call of `read`.
        threads: Names of the threads that called `read`.
        admissions: Requests of each call of `admit`.
        queued: Requests that were admitted, with their leases.
        ended: Whether `admit` refuses all requests.
        done: Number of calls of `done`.
        loading: Called with the name of a task before it loads; may block or raise.
        refused: Requests that `admit` refuses.
    """

    tasks: TaskLibrary[Task, str]
    metrics: Metrics
    failures: list[BaseException] = field(default_factory=list)
    calls: list[list[Any]] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    admissions: list[list[Any]] = field(default_factory=list)
    queued: list[tuple[Any, Lease[str] | None]] = field(default_factory=list)
    refused: list[Any] = field(default_factory=list)
    ended: bool = False
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    intake: Any = None

    def read(self, requests: Sequence[Named]) -> list[Text | TidalError]:
        self.calls.append([request for request, _ in requests])
        self.threads.append(threading.current_thread().name)
        return read_each(self.read_one)(requests)

    def read_one(self, request: Any, task: str | None) -> Text:
        if "error" in request.inputs:
            raise request.inputs["error"]
        return Text(request, task)

    def admit(self, read: Sequence[tuple[Text, Lease[str] | None]]) -> list[TidalError | None]:
        with self.lock:
            if self.ended:
                return [model_stops() for _ in read]
            self.admissions.append([text.request for text, _ in read])
            errors: list[TidalError | None] = []
            for text, lease in read:
                if text.request in self.refused:
                    errors.append(InvalidArgument("refused"))
                    continue
                self.queued.append((text.request, lease))
                errors.append(None)
            return errors

    def finish(self) -> None:
        """Answer the admitted requests."""
        with self.lock:
            queued, self.queued = self.queued, []
        for request, lease in queued:
            request.reply({})
            if lease is not None:
                lease.release()

    def finished(self) -> None:
        with self.lock:
            self.done += 1

    def pins(self) -> int:
        """Number of leases that are not released."""
        return sum(entry.pins for entry in self.tasks._cache._entries.values())

    def waiting(self) -> float:
        return next(sample.value for sample in self.metrics.samples() if "waiting_for_task" in sample.family)

    def refusals(self) -> dict[str, float]:
        return {
            dict(sample.labels)["reason"]: sample.value
            for sample in self.metrics.samples()
            if sample.family.endswith("refused_queries_total")
        }


@contextmanager
def serving(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[str], None] = lambda _name: None,
    *,
    known: Sequence[str] = ("a", "b", "c"),
    budget: int = 10,
    **options: Any,
) -> Iterator[Service]:
    """Run an intake; at its end, all leases have to be released."""
    stamps: dict[str, Stamp] = dict.fromkeys(known, (0, 0, 0))
    monkeypatch.setattr("tidal.tasks.library.scan", lambda _folder: stamps)
    monkeypatch.setattr("tidal.tasks.library.scan_one", lambda _folder, _name: None)

    def loaded(task: Task) -> str:
        load(task.name)
        return task.name

    metrics = Metrics("test")
    library: TaskLibrary[Task, str] = TaskLibrary(folder, Task, loaded, lambda _name: None, budget, metrics)
    service = Service(library, metrics)
    service.intake = Intake(
        make_context(folder, metrics, failures=service.failures),
        library,
        IntakeMetrics(metrics),
        service.read,
        service.admit,
        service.finished,
        **options,
    )
    try:
        yield service
    finally:
        service.intake.stop()
        service.intake.close(10)
    assert service.failures == []


def load_all(service: Service, *names: str) -> None:
    """Load tasks into memory."""
    for name in names:
        service.tasks.acquire(name).result(10).release()
