"""Starting a server with the instances that allocations request, each model loaded once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidal.catalog.graph import ModelGraph
from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.repository.allocation import Allocation, read_allocation, write_allocation
from tidal.server.active_config import ActiveConfig, active_config, check_allocation, load_model
from tidal.server.change_lock import exclusive_change
from tidal.server.control import ServerControl
from tidal.server.progress import StartProgress
from tidal.server.reasons import sentence

_LOADING_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Models by when they are loaded.

    Attributes:
        by_server: Models that tritonserver loads while it starts, by their config.pbtxt.
        later: Models that are loaded after that, in stages: a stage requires models of earlier ones only.
        refused: Models that are not loaded because their allocation or config is not valid, each with the reason.
    """

    by_server: tuple[str, ...]
    later: tuple[tuple[str, ...], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """All models that are to be loaded."""
        return (*self.by_server, *(name for stage in self.later for name in stage))


def plan_start(graph: ModelGraph, models: Sequence[str], *, strict: bool = True) -> StartPlan:
    """When to load each model; a model that its front's allocation gives no instance is not loaded.

    Args:
        graph: Relations between the models of the repository.
        models: Names of the models to serve.
        strict: Whether an allocation or config that is not valid is an error; else its model is `refused`.

    Raises:
        InvalidArgument: An allocation or config is not valid, and `strict` is set; the message says what to do.
    """
    active: dict[str, ActiveConfig | None] = {}
    refused: dict[str, str] = {}
    for name in models:
        try:
            check_allocation(graph, name)
            active[name] = active_config(graph, name)
        except InvalidArgument as error:
            if strict:
                raise
            refused[name] = str(error)
    for name in tuple(active):
        owner = graph.owner(name)
        if owner is not None and owner.name in refused:
            del active[name]
            refused[name] = f"it is a runtime of '{owner.name}', which cannot be loaded"
    stages: dict[str, int] = {}  # 0: by the server
    for name in graph.load_order(active):
        if name in active and ((own := active[name]) is None or own.instances):
            after = max((stages.get(each, 0) for each in graph.requires(name)), default=0)
            later = graph.composite(name) or (own is not None and not own.as_in_file)
            stages[name] = after + 1 if later or after else 0
    by_stage = [
        tuple(name for name in models if stages.get(name) == stage)
        for stage in range(max(stages.values(), default=0) + 1)
    ]
    return StartPlan(by_stage[0], tuple(by_stage[1:]), tuple(refused.items()))


def clear_unfinished_changes(repository: Path, models: Sequence[str]) -> None:
    """Remove from allocations what unfinished changes had loaded: a server that starts loads what is wanted.

    A change that another server is making now is left alone: it writes the file when it ends.

    Raises:
        InvalidArgument: An allocation is not valid.
    """
    for name in models:
        if not _unfinished(repository / name):
            continue
        with suppress(Unavailable), exclusive_change(repository / name):
            allocation = _unfinished(repository / name)  # it may have been completed meanwhile
            if allocation is not None:
                write_allocation(repository / name, allocation.completed())


def _unfinished(front: Path) -> Allocation | None:
    allocation = read_allocation(front)
    return allocation if allocation is not None and allocation.loaded is not None else None


def load_later(
    control: ServerControl,
    repository: Path,
    plan: StartPlan,
    stop: threading.Event,
    progress: StartProgress,
    *,
    strict: bool,
) -> bool:
    """Load the later stages of a plan, and report each load to `progress`.

    Args:
        control: Admin API of the server.
        repository: Folder of the model repository.
        plan: Models by when they are loaded.
        stop: Event that ends the loading early.
        progress: Receiver of each model's load and its time.
        strict: Whether to load no further stage after a failure.

    Returns:
        Whether everything was loaded or failed before `stop` was set.
    """

    def load(name: str) -> None:
        progress.loading(name)
        load_model(control, ModelGraph.read(repository), name)

    for stage in plan.later:
        if strict and progress.failed:
            break
        pool = ThreadPoolExecutor(_LOADING_AT_ONCE, thread_name_prefix="load")
        try:
            loads = {pool.submit(load, name): name for name in stage}
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
