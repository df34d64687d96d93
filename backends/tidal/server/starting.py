"""How a server comes up with the instances that allocations want, each model loaded once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.repository.allocation import Allocation, make_allocation, read_allocation, write_allocation
from tidal.repository.cascades import cascade
from tidal.repository.ensembles import ensemble
from tidal.repository.partitioned import family
from tidal.server.active_config import ActiveConfig, active_config, check_allocation, load_model
from tidal.server.allocate import changing
from tidal.server.control import ServerControl
from tidal.server.progress import Progress
from tidal.server.reasons import sentence

_LOADING_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Models by when they are loaded."""

    by_server: tuple[str, ...]  # while it starts, by config.pbtxt
    runtimes: tuple[str, ...] = ()  # then these, with another config than config.pbtxt
    fronts: tuple[str, ...] = ()  # the fronts that need those
    cascades: tuple[str, ...] = ()  # then what asks other models
    ensembles: tuple[str, ...] = ()  # last, what hands requests to any of them
    refused: tuple[tuple[str, str], ...] = ()  # not loaded, because their allocation or config cannot be accepted

    @property
    def models(self) -> tuple[str, ...]:
        """All that are to be loaded."""
        return (*self.by_server, *self.runtimes, *self.fronts, *self.cascades, *self.ensembles)


def plan_start(repository: Path, models: Sequence[str], *, strict: bool = True) -> StartPlan:
    """When to load each model; one that its front's allocation gives no instance is not loaded.

    Args:
        repository: where the models are.
        models: names of those to serve.
        strict: whether an allocation or config that cannot be accepted is an error; else its model is `refused`.

    Raises:
        InvalidArgument: an allocation or config cannot be accepted, and `strict` is set; says what to do.
    """
    active: dict[str, ActiveConfig | None] = {}
    refused: dict[str, str] = {}
    for name in models:
        try:
            check_allocation(repository, name)
            active[name] = active_config(repository, name)
        except InvalidArgument as error:
            if strict:
                raise
            refused[name] = str(error)
    for name in tuple(active):
        related = family(repository, name)
        if related is not None and related.front in refused:
            del active[name]
            refused[name] = f"it is a runtime of '{related.front}', which cannot be loaded"
    runtimes = [name for name, own in active.items() if own is not None and own.instances and not own.as_in_file]
    waiting = {related.front for name in runtimes if (related := family(repository, name)) is not None}
    asking = [name for name in active if cascade(repository, name) is not None]
    joint = [name for name in active if ensemble(repository, name) is not None]
    plain = [
        name
        for name, own in active.items()
        if name not in (*asking, *joint) and (own is None or (own.instances and own.as_in_file))
    ]
    return StartPlan(
        by_server=tuple(name for name in plain if name not in waiting),
        runtimes=tuple(runtimes),
        fronts=tuple(name for name in plain if name in waiting),
        cascades=tuple(asking),
        ensembles=tuple(joint),
        refused=tuple(refused.items()),
    )


def forget_changes(repository: Path, models: Sequence[str]) -> None:
    """Drop what unfinished changes of allocations had loaded: a server that starts loads what is wanted.

    A change that runs just now, which takes another server, is left alone: it writes the file to its end.

    Raises:
        InvalidArgument: an allocation cannot be accepted.
    """
    for name in models:
        if not _unfinished(repository / name):
            continue
        with suppress(Unavailable), changing(repository / name):
            allocation = _unfinished(repository / name)  # it may have been completed meanwhile
            if allocation is not None:
                write_allocation(repository / name, make_allocation(allocation.instances))


def _unfinished(front: Path) -> Allocation | None:
    allocation = read_allocation(front)
    return allocation if allocation is not None and allocation.loaded is not None else None


def load_rest(
    control: ServerControl,
    repository: Path,
    plan: StartPlan,
    stop: threading.Event,
    progress: Progress,
    *,
    strict: bool,
) -> bool:
    """Load what a plan leaves for after the start; what loads and what does not goes to `progress`.

    Args:
        control: the server's admin side.
        repository: where the models are.
        plan: when to load which model.
        stop: set it to give up.
        progress: Receiver of each model's load and its time.
        strict: load no others after a failure than those that are loaded at the same time.

    Returns:
        False when `stop` was set before.
    """

    def load(name: str) -> None:
        progress.loading(name)
        load_model(control, repository, name)

    for models in (plan.runtimes, plan.fronts, plan.cascades, plan.ensembles):
        if strict and progress.failed:
            break
        pool = ThreadPoolExecutor(_LOADING_AT_ONCE, thread_name_prefix="load")
        try:
            loads = {pool.submit(load, name): name for name in models}
            while loads:
                done, _ = wait(loads, timeout=0.1, return_when=FIRST_COMPLETED)
                for each in done:
                    name = loads.pop(each)
                    try:
                        each.result()
                    except TidalError as error:
                        progress.failure(name, sentence(str(error)))
                    else:
                        progress.succeeded(name)
                progress.waiting()
                if loads and stop.is_set():
                    return False
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return True
