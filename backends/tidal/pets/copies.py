"""Merged copies of the base for hot tasks: created, kept and dropped according to the load (PetS Inequality 1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidal.errors import TidalError
from tidal.metrics import Metrics
from tidal.pets.engine.contract import LoadedTask, PetsEngine
from tidal.pets.library import PetsLibrary, ServedTask
from tidal.pets.policies import PetsQuery
from tidal.pets.policies.merging import Arrivals, MergeRule, choose_copies
from tidal.pets.profile import Tables
from tidal.pets.terms import TaskTerms
from tidal.service import ServiceContext
from tidal.tasks.lease import Lease, forget

# Opens a copy of the base with a task merged into its weights; returns it with the rest of the task loaded in it.
OpenCopy = Callable[[TaskTerms], tuple[PetsEngine, LoadedTask]]

# Seconds between checks of the load, and the age in seconds at which an arrival counts half.
_CHOOSE_S = 2.0
_HALF_LIFE_S = 20.0
# Seconds until a failed copy is tried again: trying costs as much as making it.
_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class MergedCopy:
    """A merged copy of the base for one task.

    Attributes:
        source: Task in the shared base, which the queries refer to; another object is another version of the task.
        engine: Engine of the copy.
        task: Part of the task that is not merged, loaded in the copy.
        lease: Keeps the task in memory.
    """

    source: LoadedTask
    engine: PetsEngine
    task: LoadedTask
    lease: Lease[ServedTask]


@dataclass(frozen=True, slots=True)
class MergingOptions:
    """When and how merged copies are created.

    Attributes:
        open_copy: Opens a copy for a task.
        tables: Costs of the base and of tasks' terms.
        rule: Number of copies that is permitted, and what they must save.
    """

    open_copy: OpenCopy
    tables: Tables
    rule: MergeRule


class MergedCopies:
    """The merged copies of one service, managed by a thread of its own: a copy takes the memory of a whole encoder.

    Args:
        context: Context that the service is started with.
        library: Tasks of the model.
        merging: When and how copies are created.
        changed: Called with the names of the tasks that have a copy, whenever these change.
    """

    def __init__(
        self,
        context: ServiceContext,
        library: PetsLibrary,
        merging: MergingOptions,
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._log = context.log
        self._library = library
        self._merging = merging
        self._changed = changed
        self._copies_gauge = _copies_gauge(context.metrics)
        self._copies: dict[str, MergedCopy] = {}
        self._retry_at: dict[str, float] = {}
        self._arrivals = Arrivals(_HALF_LIFE_S)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = context.start_thread("copies", self._run) if merging.rule.max_copies else None

    def note(self, queries: Sequence[PetsQuery]) -> None:
        """Count arrived queries."""
        if self._thread is not None:
            now = time.monotonic()
            with self._lock:
                for query in queries:
                    self._arrivals.note(query.task, query.kind, query.length, now)

    def find(self, name: str, tasks: Sequence[LoadedTask]) -> MergedCopy | None:
        """The copy that runs queries of a task.

        Args:
            name: Name of the task.
            tasks: The queries' task as it is loaded in the shared base, once per query.

        Returns:
            The copy, or None if it was dropped or is of another version of the task.
        """
        found = self._copies.get(name)
        return found if found is not None and all(task is found.source for task in tasks) else None

    def close(self, timeout_s: float) -> None:
        """End the thread and drop all copies.

        Args:
            timeout_s: Seconds to wait for the thread.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        for name in list(self._copies):
            self._drop(name, "the model stops")

    def _run(self) -> None:
        while not self._stopping.wait(_CHOOSE_S):
            known = set(self._library.names())
            with self._lock:
                loads = [load for load in self._arrivals.loads(time.monotonic()) if load.task in known]
            wanted = choose_copies(loads, frozenset(self._copies), self._merging.tables, self._merging.rule)
            for name in list(self._copies):
                if not self._is_current(name):
                    self._drop(name, "the task was changed, removed or evicted")
                elif name not in wanted:
                    self._drop(name, "it saves too little time now")
            for name in sorted(wanted.difference(self._copies)):
                if not self._stopping.is_set() and time.monotonic() >= self._retry_at.get(name, 0.0):
                    self._create(name)

    def _create(self, name: str) -> None:
        try:
            task = self._library.read(name)
            future = self._library.acquire(name)
        except TidalError as error:
            self._retry_later(name, str(error))
            return
        try:
            lease = future.result(timeout=_HALF_LIFE_S)
        except (TidalError, TimeoutError) as error:
            forget(future)
            self._retry_later(name, str(error) or "it was not loaded in time")
            return
        if lease.handle.info != task.info:  # replaced meanwhile: try again next time
            lease.release()
            return
        try:
            engine, left = self._merging.open_copy(task.terms)
        except Exception as error:  # for example too little memory: the task stays on the shared base
            lease.release()
            self._retry_later(name, f"{type(error).__name__}: {error}")
            return
        self._copies[name] = MergedCopy(lease.handle.loaded, engine, left, lease)
        self._publish()
        self._log.info(f"task '{name}' now runs from a merged copy of the base")

    def _retry_later(self, name: str, reason: str) -> None:
        self._retry_at[name] = time.monotonic() + _RETRY_S
        self._log.warning(f"task '{name}' gets no merged copy: {reason}")

    def _is_current(self, name: str) -> bool:
        """Whether a copy is of the present version of its task."""
        try:
            future = self._library.acquire(name)
        except TidalError:
            return False
        if not future.done() or future.exception() is not None:
            forget(future)
            return False
        with future.result() as lease:
            return lease.handle.loaded is self._copies[name].source

    def _drop(self, name: str, reason: str) -> None:
        copy = self._copies.pop(name)
        self._publish()
        copy.lease.release()
        self._log.info(f"task '{name}' no longer has a merged copy: {reason}")

    def _publish(self) -> None:
        self._copies_gauge(len(self._copies))
        self._changed(frozenset(self._copies))


def _copies_gauge(metrics: Metrics) -> Callable[[float], None]:
    gauge = metrics.gauge("merged_copies", "Tasks that have a merged copy of the base")
    gauge.set(0)
    return gauge.set
