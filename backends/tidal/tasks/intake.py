"""From request to queue: requests are read and their tasks loaded into memory while the engine runs others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidal.errors import InvalidArgument, TidalError
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import failure
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


class Named(NamedTuple):
    """A request to be read, with the name of its task; None for a request to the base."""

    request: PendingRequest
    task: str | None


class Intake(Generic[Task, Handle, Read]):
    """Reads requests in batches, in the thread that passes them or in reader threads, and admits them with their tasks.

    A request whose task is not in memory is admitted alone, by the thread that loads the task. Another thread scans the
    folder of tasks for changes.

    Args:
        context: Context of the service.
        library: The model's tasks; owned by the intake from now on.
        metrics: Metrics of the service.
        read: Reads requests; returns for each what the system made of it, or the error of one that cannot be read.
        admit: Queues read requests with the leases of their tasks (None: to the base), and releases the leases later;
            returns for each None, or the error of one that it did not queue. An exception ends the service.
        done: Called once after `stop`, when no further request will be admitted.
        readers: Number of reader threads; 0: the thread that passes requests reads them all.
        slow: Whether a reader thread reads a request; the thread that passes it reads all others.
        base: Whether requests without a task are accepted.
    """

    def __init__(
        self,
        context: ServiceContext,
        library: TaskLibrary[Task, Handle],
        metrics: IntakeMetrics,
        read: Callable[[Sequence[Named]], Sequence[Read | TidalError]],
        admit: Callable[[Sequence[tuple[Read, Lease[Handle] | None]]], Sequence[TidalError | None]],
        done: Callable[[], None],
        *,
        readers: int = 0,
        slow: Callable[[PendingRequest], bool] = lambda _request: True,
        base: bool = False,
    ) -> None:
        self._failed = context.failed
        self._library = library
        self._metrics = metrics
        self._read_requests = read
        self._admit_requests = admit
        self._done = done
        self._slow = slow
        self._base = base
        self._lock = threading.Lock()
        self._closing = False
        # Number of requests that wait for their task, of calls of `accept` that run, and of reader threads that run;
        # and 1 until `stop`.
        self._pending = readers + 1
        self._loading = 0  # number of queries that wait for their task
        self._leaving = threading.Event()
        self._arrived: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._readers = [context.start_thread("reader", self._read_slow) for _ in range(readers)]
        self._watch = context.start_thread("tasks", self._watch_tasks)

    def accept(self, requests: Sequence[PendingRequest]) -> bool:
        """Read and admit requests, or pass them to reader threads; False after `stop`."""
        here: list[PendingRequest] = []
        slow: list[PendingRequest] = []
        for request in requests:
            (slow if self._readers and self._slow(request) else here).append(request)
        with self._lock:
            if self._closing:
                return False
            self._pending += 1
            for request in slow:
                self._arrived.put(request)
        try:
            self._take(here)
        finally:
            self._count(-1, 0)
        return True

    def stop(self) -> None:
        """Accept no further requests; accepted ones are still admitted."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            for _ in self._readers:
                self._arrived.put(None)
        self._count(-1, 0)

    def close(self, timeout_s: float) -> None:
        """End the threads and unload the tasks; requests whose task did not load in time are refused."""
        until = time.monotonic() + timeout_s
        self._leaving.set()
        self._library.close()
        join_until(until, (*self._readers, self._watch))

    def _watch_tasks(self) -> None:
        while not self._leaving.wait(_SCAN_S):
            self._library.refresh()

    def _read_slow(self) -> None:
        while (request := self._arrived.get()) is not None:
            self._take([request])
        self._count(-1, 0)

    def _take(self, requests: Sequence[PendingRequest]) -> None:
        """Acquire the tasks of requests and read them; each is admitted once its task is in memory."""
        acquired: list[_Acquired[Handle]] = []
        try:
            for request in requests:
                if not self._missed(request):
                    self._acquire(request, acquired)
            results = self._read_requests([Named(each.request, each.task) for each in acquired]) if acquired else ()
        except BaseException:
            for each in acquired:
                each.give_back()
            raise
        ready: list[tuple[Read, Lease[Handle] | None]] = []
        waiting: list[tuple[Read, Future[Lease[Handle]]]] = []
        for each, read in zip(acquired, results, strict=True):
            if isinstance(read, TidalError):
                each.give_back()
                self._refuse(each.request, "input", read)
            elif isinstance(each.lease, Future):
                waiting.append((read, each.lease))
            else:
                ready.append((read, each.lease))
        self._admit(ready)
        for read, future in waiting:
            self._count(1, read.request.rows)
            future.add_done_callback(partial(self._loaded, read))

    def _acquire(self, request: PendingRequest, acquired: list[_Acquired[Handle]]) -> None:
        """Acquire a request's task, which begins to load if it is not in memory; refuse a request without one."""
        name = request.options.task
        if name is None and self._base:
            acquired.append(_Acquired(request, None, None))
            return
        try:
            if name is None:
                raise _no_task(self._library.names())
            acquired.append(_Acquired(request, name, self._library.acquire_now(name) or self._library.acquire(name)))
        except TidalError as error:
            self._refuse(request, "task", error)
        except Exception as error:  # one request must not fail the others
            request.fail(failure(error, "the request could not be read"))

    def _loaded(self, read: Read, future: Future[Lease[Handle]]) -> None:
        """Admit a request after its task has loaded or failed to load; runs on the loader thread."""
        try:
            try:
                lease = future.result()
            except TidalError as error:
                self._refuse(read.request, "task", error)
            else:
                self._admit([(read, lease)])
        except BaseException as error:  # the thread itself does not end
            self._failed(error)
        finally:
            self._count(-1, -read.request.rows)

    def _missed(self, request: PendingRequest) -> bool:
        """Whether a request's deadline has passed, so that it was answered with an error; counts its queries then."""
        if request.answered:
            self._metrics.refused("deadline", request.rows)
        return request.answered

    def _admit(self, ready: Sequence[tuple[Read, Lease[Handle] | None]]) -> None:
        """Admit read requests, except those whose deadline has passed meanwhile."""
        admitted: list[tuple[Read, Lease[Handle] | None]] = []
        for read, lease in ready:
            if not self._missed(read.request):
                admitted.append((read, lease))
            elif lease is not None:
                lease.release()
        if not admitted:
            return
        for (read, lease), error in zip(admitted, self._admit_requests(admitted), strict=True):
            if error is not None:
                if lease is not None:
                    lease.release()
                read.request.fail(error)

    def _refuse(self, request: PendingRequest, reason: str, error: TidalError) -> None:
        self._metrics.refused(reason, request.rows)
        request.fail(error)

    def _count(self, pending: int, queries: int) -> None:
        with self._lock:
            self._pending += pending
            self._loading += queries
            if queries:
                self._metrics.loading.set(self._loading)
            done = not self._pending
        if done:
            self._done()


class _Acquired(NamedTuple, Generic[Handle]):
    """A request, the name of its task, and the task's lease, or its future while the task loads; None: the base."""

    request: PendingRequest
    task: str | None
    lease: Lease[Handle] | Future[Lease[Handle]] | None

    def give_back(self) -> None:
        """Release the task, or stop waiting for it."""
        if isinstance(self.lease, Future):
            forget(self.lease)
        elif self.lease is not None:
            self.lease.release()


def read_each(
    read: Callable[[PendingRequest, str | None], Read],
) -> Callable[[Sequence[Named]], list[Read | TidalError]]:
    """Return the `read` of an `Intake` that reads requests one by one.

    Args:
        read: Reads a request, given with the name of its task; raises an exception if it cannot be read.
    """

    def read_all(requests: Sequence[Named]) -> list[Read | TidalError]:
        results: list[Read | TidalError] = []
        for request, task in requests:
            try:
                results.append(read(request, task))
            except Exception as error:  # one request must not fail the others
                results.append(failure(error, "the request could not be read"))
        return results

    return read_all


def _no_task(known: Collection[str]) -> InvalidArgument:
    """Return the error for a request that names no task, given the names of all tasks."""
    names = sorted(known)
    more = len(names) - _MAX_NAMES_SHOWN
    shown = ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    hint = f"accepted: {shown}" if shown else "the model has no tasks"
    return InvalidArgument(f"the request names no task in its option 'task'; {hint}")
