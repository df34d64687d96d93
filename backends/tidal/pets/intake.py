"""The way of a request into the queue: it is read, and its task brought into memory, while the engine runs others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tidal.errors import Internal, TidalError, Unavailable
from tidal.pets.engine.tasks import LoadedTask
from tidal.pets.jobs import Job, Row
from tidal.pets.library import TaskLibrary
from tidal.pets.metrics import PetsMetrics
from tidal.pets.reading import read_task, read_tokens
from tidal.pets.tasks.lease import Lease
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.text import TextTokenizer

LEAVING = "the model stops serving here; send the request again"
# Between two looks at the folder of tasks.
_SCAN_S = 1.0


class Intake:
    """A thread that reads requests and one that looks for tasks that came, changed or went.

    Args:
        context: what the service is started with.
        tokenizer: limited to what may run.
        library: the model's tasks; the intake's own from now on.
        metrics: of the service.
        admit: queues the rows of a request whose task is in memory; False when nothing is run any more.
        done: told, once it is closed, that nothing will be admitted any more.
    """

    def __init__(
        self,
        context: ServiceContext,
        tokenizer: TextTokenizer,
        library: TaskLibrary,
        metrics: PetsMetrics,
        admit: Callable[[Sequence[Row]], bool],
        done: Callable[[], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._library = library
        self._metrics = metrics
        self._admit_rows = admit
        self._done = done
        self._lock = threading.Lock()
        self._closing = False
        # Requests that are with the reader or wait for their task, as a count of both and the reader itself.
        self._under_way = 1
        self._loading = 0  # queries that wait for their task
        self._leaving = threading.Event()
        self._arrived: queue.SimpleQueue[Sequence[PendingRequest] | None] = queue.SimpleQueue()
        self._reader = context.start_thread("reader", self._read_all)
        self._watch = context.start_thread("tasks", self._look_for_tasks)

    def take(self, requests: Sequence[PendingRequest]) -> bool:
        """Hand requests to the thread that reads them, without waiting; False when it is closed."""
        with self._lock:
            if not self._closing:
                self._arrived.put(requests)
            return not self._closing

    def stop(self) -> None:
        """Take nothing more; what was taken is still admitted."""
        with self._lock:
            self._closing = True
            self._arrived.put(None)

    def close(self, timeout_s: float) -> None:
        """End the threads and let the tasks go; requests that wait for one that did not load in time are refused."""
        until = time.monotonic() + timeout_s
        self._leaving.set()
        self._library.close()
        self._reader.join(max(0.0, until - time.monotonic()))
        self._watch.join(max(0.0, until - time.monotonic()))

    def _look_for_tasks(self) -> None:
        while not self._leaving.wait(_SCAN_S):
            self._library.refresh()

    def _read_all(self) -> None:
        while (requests := self._arrived.get()) is not None:
            for request in requests:
                try:
                    self._read(request)
                except TidalError as error:
                    request.fail(error)
                except Exception as error:  # one request must not cost the others their service
                    request.fail(Internal(f"the request could not be read: {type(error).__name__}: {error}"))
        self._count(-1, 0)

    def _read(self, request: PendingRequest) -> None:
        """Read a request and ask for its task; its rows wait for the engine once that is in memory."""
        try:
            name = read_task(request, self._library.names)
            future = self._library.acquire(name)  # one that is not in memory loads from now on
        except TidalError:
            self._metrics.refused("task", request.rows)
            raise
        try:
            job = Job(request, name, read_tokens(request, self._tokenizer))
        except BaseException as error:
            _forget(future)
            if isinstance(error, TidalError):
                self._metrics.refused("input", request.rows)
            raise
        for row in job.tokens:
            self._metrics.length(len(row.ids))
        if future.done():
            self._admit(job, future)
            return
        self._count(1, len(job.tokens))
        future.add_done_callback(lambda loaded: self._loaded(job, loaded))

    def _loaded(self, job: Job, future: Future[Lease[LoadedTask]]) -> None:
        """A task that a job waited for is in memory, or will never be; on the thread that loaded it."""
        try:
            self._admit(job, future)
        except Exception as error:
            job.fail(error if isinstance(error, TidalError) else Internal(f"{type(error).__name__}: {error}"))
        finally:
            self._count(-1, -len(job.tokens))

    def _admit(self, job: Job, future: Future[Lease[LoadedTask]]) -> None:
        """Queue a job's rows.

        Raises:
            TidalError: what kept the task from loading.
        """
        try:
            lease = future.result()
        except TidalError:
            self._metrics.refused("task", len(job.tokens))
            raise
        if job.request.answered:
            lease.release()
        elif not self._admit_rows(job.rows(lease)):
            lease.release()
            raise Unavailable(LEAVING)

    def _count(self, requests: int, queries: int) -> None:
        with self._lock:
            self._under_way += requests
            self._loading += queries
            self._metrics.loading.set(self._loading)
            done = not self._under_way
        if done:
            self._done()


def _forget(future: Future[Lease[LoadedTask]]) -> None:
    """Release a task that nobody waits for any more, also one that is still being loaded."""
    if not future.cancel():
        future.add_done_callback(_release)


def _release(future: Future[Lease[LoadedTask]]) -> None:
    if future.exception() is None:
        future.result().release()
