"""The way of a request to the queue: it is read, and its task brought into memory, while the engine runs others."""

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

# Between two looks at the folder of tasks.
_SCAN_S = 1.0
_FEW = 5


class ReadRequest(Protocol):
    """A request that was read."""

    @property
    def request(self) -> PendingRequest:
        """The request itself."""


Job = TypeVar("Job", bound=ReadRequest)


class Intake(Generic[Task, Handle, Job]):
    """Threads that read requests, and one that looks for tasks that came, changed or went.

    Args:
        context: what the service is started with.
        library: the model's tasks; the intake's own from now on.
        metrics: of the service.
        read: makes a job of a request and its task's name; raises a TidalError for one that cannot be read.
        admit: queues a job whose task is in memory, and releases that in time; False when nothing is run any more.
        done: told, once it is closed, that nothing will be admitted any more.
        readers: threads that read.
        take_base: reads and queues a request without a task, as `read` and `admit` do; None: such are refused.
    """

    def __init__(
        self,
        context: ServiceContext,
        library: TaskLibrary[Task, Handle],
        metrics: IntakeMetrics,
        read: Callable[[PendingRequest, str], Job],
        admit: Callable[[Job, Lease[Handle]], bool],
        done: Callable[[], None],
        readers: int = 1,
        take_base: Callable[[PendingRequest], bool] | None = None,
    ) -> None:
        self._library = library
        self._metrics = metrics
        self._read_job = read
        self._admit_job = admit
        self._done = done
        self._take_base = take_base
        self._lock = threading.Lock()
        self._closing = False
        # Requests that are with a reader or wait for their task, as a count of those that wait and the readers.
        self._under_way = readers
        self._loading = 0  # queries that wait for their task
        self._leaving = threading.Event()
        self._arrived: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._readers = [context.start_thread("reader", self._read_all) for _ in range(readers)]
        self._watch = context.start_thread("tasks", self._look_for_tasks)

    def take(self, requests: Sequence[PendingRequest]) -> bool:
        """Hand requests to the threads that read them, without waiting; False when it is closed."""
        with self._lock:
            if not self._closing:
                for request in requests:
                    self._arrived.put(request)
            return not self._closing

    def stop(self) -> None:
        """Take nothing more; what was taken is still admitted."""
        with self._lock:
            self._closing = True
            for _ in self._readers:
                self._arrived.put(None)

    def close(self, timeout_s: float) -> None:
        """End the threads and let the tasks go; requests that wait for one that did not load in time are refused."""
        until = time.monotonic() + timeout_s
        self._leaving.set()
        self._library.close()
        join_until(until, (*self._readers, self._watch))

    def _look_for_tasks(self) -> None:
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
        """Read a request and ask for its task; its rows wait for the engine once that is in memory."""
        if request.answered:  # its deadline passed while others were read
            return
        if request.options.task is None and self._take_base is not None:
            self._read_base(request, self._take_base)
            return
        try:
            name = task_name(request, self._library.names)
            future = self._library.acquire(name)  # one that is not in memory loads from now on
        except TidalError:
            self._metrics.refused("task", request.rows)
            raise
        try:
            job = self._read_job(request, name)
        except BaseException as error:
            forget(future)
            if isinstance(error, TidalError):
                self._metrics.refused("input", request.rows)
            raise
        if future.done():
            self._admit(job, future)
            return
        self._count(1, request.rows)
        future.add_done_callback(lambda loaded: self._loaded(job, loaded))

    def _read_base(self, request: PendingRequest, take: Callable[[PendingRequest], bool]) -> None:
        try:
            taken = take(request)
        except TidalError:
            self._metrics.refused("input", request.rows)
            raise
        if not taken:
            raise model_stops()

    def _loaded(self, job: Job, future: Future[Lease[Handle]]) -> None:
        """A task that a job waited for is in memory, or will never be; on the thread that loaded it."""
        try:
            self._admit(job, future)
        except Exception as error:
            job.request.fail(error if isinstance(error, TidalError) else Internal(f"{type(error).__name__}: {error}"))
        finally:
            self._count(-1, -job.request.rows)

    def _admit(self, job: Job, future: Future[Lease[Handle]]) -> None:
        """Queue a job's rows.

        Raises:
            TidalError: what kept the task from loading.
        """
        try:
            lease = future.result()
        except TidalError:
            self._metrics.refused("task", job.request.rows)
            raise
        if job.request.answered:
            lease.release()
        elif not self._admit_job(job, lease):
            lease.release()
            raise model_stops()

    def _count(self, requests: int, queries: int) -> None:
        with self._lock:
            self._under_way += requests
            self._loading += queries
            self._metrics.loading.set(self._loading)
            done = not self._under_way
        if done:
            self._done()


def task_name(request: PendingRequest, known: Callable[[], Collection[str]]) -> str:
    """The name of the task that all rows of a request belong to.

    Args:
        request: with the option `task`.
        known: gives the names of all tasks, for the error.

    Raises:
        InvalidArgument: it names none.
    """
    name = request.options.task
    if name is None:
        names = sorted(known())
        some = ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
        hint = f"accepted: {some}" if some else "the model has no tasks"
        raise InvalidArgument(f"the request names no task in its option 'task'; {hint}")
    return name
