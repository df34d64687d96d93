"""How a server comes up with the instances that allocations want, each model loaded once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidal.allocation import Allocation, make_allocation, read_allocation, write_allocation
from tidal.cascade import cascade
from tidal.ensembles import ensemble
from tidal.errors import Internal, TidalError, Unavailable
from tidal.family import family
from tidal.server.active_config import active_config, check_allocation, load_model
from tidal.server.allocate import changing
from tidal.server.control import ServerControl
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


def plan_start(repository: Path, models: Sequence[str]) -> StartPlan:
    """When to load each model; one that its front's allocation gives no instance is not loaded.

    Raises:
        InvalidArgument: an allocation cannot be accepted; says what to do.
    """
    for name in models:
        check_allocation(repository, name)
    active = {name: active_config(repository, name) for name in models}
    runtimes = [name for name, own in active.items() if own is not None and own.instances and not own.as_in_file]
    waiting = {kin.front for name in runtimes if (kin := family(repository, name)) is not None}
    asking = [name for name in models if cascade(repository, name) is not None]
    joint = [name for name in models if ensemble(repository, name) is not None]
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


def load_rest(control: ServerControl, repository: Path, plan: StartPlan, stop: threading.Event) -> bool:
    """Load what a plan leaves for after the start.

    Returns:
        False when `stop` was set before.

    Raises:
        Internal: models that do not load, each with the reason.
    """
    for models in (plan.runtimes, plan.fronts, plan.cascades, plan.ensembles):
        pool = ThreadPoolExecutor(_LOADING_AT_ONCE, thread_name_prefix="load")
        try:
            loads = {name: pool.submit(load_model, control, repository, name) for name in models}
            while not all(load.done() for load in loads.values()):
                if stop.is_set():
                    return False
                wait(loads.values(), timeout=0.1, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        failures = []
        for name, load in loads.items():
            try:
                load.result()
            except TidalError as error:
                failures.append(f"model '{name}' does not load: {sentence(str(error))}")
        if failures:
            raise Internal("; ".join(failures))
    return True
