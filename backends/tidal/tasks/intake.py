"""From request to queue: requests are read and their tasks loaded into memory while the engine runs others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from tidal.errors import Internal, InvalidArgument, TidalError
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import model_stops
from tidal.serving.threads import join_until
from tidal.tasks.lease import Handle, Lease, Task, forget
from tidal.tasks.library import TaskLibrary
from tidal.tasks.metrics import IntakeMetrics

# Interval between two scans of the folder of tasks.
_SCAN_S = 1.0
_MAX_NAMES_SHOWN = 5


class ReadRequest(Protocol):
    """A request after it was read, with what the system made of it."""

    @property
    def request(self) -> PendingRequest:
        """The request."""


Read = TypeVar("Read", bound=ReadRequest)


class Intake(Generic[Task, Handle, Read]):
    """Threads that read requests, and one that scans the folder of tasks for changes.

    Args:
        context: Context of the service.
        library: The model's tasks; owned by the intake from now on.
        metrics: Metrics of the service.
        read: Reads a request, given with the name of its task; raises a `TidalError` if it cannot be read.
        admit: Queues a read request with the lease of its task, and releases the lease later; False if the service has
            ended.
        done: Called once after `stop`, when no further request will be admitted.
        readers: Number of threads that read.
        admit_base: Reads and queues a request without a task; None if such requests are refused.
    """

    def __init__(
        self,
        context: ServiceContext,
        library: TaskLibrary[Task, Handle],
        metrics: IntakeMetrics,
        read: Callable[[PendingRequest, str], Read],
        admit: Callable[[Read, Lease[Handle]], bool],
        done: Callable[[], None],
        readers: int = 1,
        admit_base: Callable[[PendingRequest], bool] | None = None,
    ) -> None:
        self._library = library
        self._metrics = metrics
        self._read_request = read
        self._admit_request = admit
        self._done = done
        self._admit_base = admit_base
        self._lock = threading.Lock()
        self._closing = False
        # Number of requests that wait for their task, plus the number of reader threads that have not ended.
        self._pending = readers
        self._loading = 0  # number of queries that wait for their task
        self._leaving = threading.Event()
        self._arrived: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._readers = [context.start_thread("reader", self._read_all) for _ in range(readers)]
        self._watch = context.start_thread("tasks", self._watch_tasks)

    def accept(self, requests: Sequence[PendingRequest]) -> bool:
        """Pass requests to the reader threads, without waiting; False after `stop`."""
        with self._lock:
            if not self._closing:
                for request in requests:
                    self._arrived.put(request)
            return not self._closing

    def stop(self) -> None:
        """Accept no further requests; accepted ones are still admitted."""
        with self._lock:
            self._closing = True
            for _ in self._readers:
                self._arrived.put(None)

    def close(self, timeout_s: float) -> None:
        """End the threads and unload the tasks; requests whose task did not load in time are refused."""
        until = time.monotonic() + timeout_s
        self._leaving.set()
        self._library.close()
        join_until(until, (*self._readers, self._watch))

    def _watch_tasks(self) -> None:
        while not self._leaving.wait(_SCAN_S):
            self._library.refresh()

    def _read_all(self) -> None:
        while (request := self._arrived.get()) is not None:
            try:
                self._read(request)
            except TidalError as error:
                request.fail(error)
            except Exception as error:  # one request must not cost the others their service
                request.fail(Internal(f"the request could not be read: {type(error).__name__}: {error}"))
        self._count(-1, 0)

    def _read(self, request: PendingRequest) -> None:
        """Acquire a request's task and read the request; it is admitted once the task is in memory."""
        if request.answered:  # its deadline passed while it waited
            return
        if request.options.task is None and self._admit_base is not None:
            self._read_base(request, self._admit_base)
            return
        try:
            name = task_name(request, self._library.names)
            future = self._library.acquire(name)  # begins to load the task if it is not in memory
        except TidalError:
            self._metrics.refused("task", request.rows)
            raise
        try:
            read = self._read_request(request, name)
        except BaseException as error:
            forget(future)
            if isinstance(error, TidalError):
                self._metrics.refused("input", request.rows)
            raise
        if future.done():
            self._admit(read, future)
            return
        self._count(1, request.rows)
        future.add_done_callback(lambda loaded: self._loaded(read, loaded))

    def _read_base(self, request: PendingRequest, admit: Callable[[PendingRequest], bool]) -> None:
        try:
            admitted = admit(request)
        except TidalError:
            self._metrics.refused("input", request.rows)
            raise
        if not admitted:
            raise model_stops()

    def _loaded(self, read: Read, future: Future[Lease[Handle]]) -> None:
        """Admit a request after its task has loaded or failed to load; runs on the loader thread."""
        try:
            self._admit(read, future)
        except Exception as error:
            read.request.fail(error if isinstance(error, TidalError) else Internal(f"{type(error).__name__}: {error}"))
        finally:
            self._count(-1, -read.request.rows)

    def _admit(self, read: Read, future: Future[Lease[Handle]]) -> None:
        """Admit a read request.

        Raises:
            TidalError: The reason why the task did not load.
        """
        try:
            lease = future.result()
        except TidalError:
            self._metrics.refused("task", read.request.rows)
            raise
        if read.request.answered:
            lease.release()
        elif not self._admit_request(read, lease):
            lease.release()
            raise model_stops()

    def _count(self, requests: int, queries: int) -> None:
        with self._lock:
            self._pending += requests
            self._loading += queries
            self._metrics.loading.set(self._loading)
            done = not self._pending
        if done:
            self._done()


def task_name(request: PendingRequest, known: Callable[[], Collection[str]]) -> str:
    """Return the name of the task that all rows of a request belong to.

    Args:
        request: The request.
        known: Returns the names of all tasks, for the error.

    Raises:
        InvalidArgument: The request names no task.
    """
    name = request.options.task
    if name is None:
        names = sorted(known())
        more = len(names) - _MAX_NAMES_SHOWN
        shown = ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        hint = f"accepted: {shown}" if shown else "the model has no tasks"
        raise InvalidArgument(f"the request names no task in its option 'task'; {hint}")
    return name
