"""Changing the number of instances of a partitioned model's runtimes while it serves, without losing a request.

The steps of a change:

1. write the requested and the loaded counts, so that the front stops using instances that will be removed;
2. wait until it has stopped;
3. load the runtimes' models, first those that lose instances, so that their cores are free for the others;
4. write the requested counts alone.

After a kill at any point the file still has the requested counts, and the next change, or the next start of
`tidal serve`, completes it. Only counts change, and the `engine` backend answers synchronously, so Triton updates the
instances in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidal.catalog.graph import ModelGraph, PartitionedModel
from tidal.errors import NotFound, TidalError, Unavailable, Unsupported
from tidal.repository.allocation import configured_instances, make_allocation, read_allocation, write_allocation
from tidal.repository.config import instance_count
from tidal.repository.names import runtime_model
from tidal.server.active_config import load_model
from tidal.server.change_lock import exclusive_change
from tidal.server.control import ServerControl
from tidal.server.gauges import used_instances
from tidal.server.reasons import sentence
from tidal.server.state import running_servers

# Models loaded at the same time: "small batches to prevent excessive traffic pressure" (Arlo §4).
_BATCH = 2
_POLL_S = 0.1
_WAIT_S = 60.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class InstanceChange:
    """A change of one runtime's number of instances.

    Attributes:
        model: Name of the runtime's model.
        max_length: Input length of the runtime, in tokens.
        before: Number of instances before; 0 means that the model is not loaded.
        after: Number of instances after.
    """

    model: str
    max_length: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.model}: {self.before} -> {self.after} instances"


@dataclass(frozen=True, slots=True)
class LiveFront:
    """A partitioned model on a running `tidal serve`.

    Attributes:
        control: Admin API of the server.
        metrics: `host:port` of the server's metrics.
        repository: Folder of the model repository.
        model: The partitioned model's newest version.
    """

    control: ServerControl
    metrics: str
    repository: Path
    model: PartitionedModel

    def versions(self) -> list[int]:
        """Versions of the model that serve."""
        return [row.version for row in self.control.index() if row.name == self.model.name and row.state == "READY"]

    def serves(self) -> bool:
        """Whether the model serves with the runtimes of its newest version, so that a change can take effect now."""
        graph = ModelGraph.read(self.repository)
        served = [graph.partitioned(self.model.name, version) for version in self.versions()]
        return bool(served) and all(each is not None and each.lengths == self.model.lengths for each in served)

    def loaded(self) -> dict[int, int]:
        """Instances that are loaded on the server, by max_length ascending."""
        counts = dict.fromkeys(self.model.lengths, 0)
        index = sorted(self.control.index(), key=lambda row: row.version)
        ready = {row.name: row.version for row in index if row.state == "READY"}
        for length, name in self.model.runtime_models.items():
            if name in ready:
                counts[length] = instance_count(self.control.config(name, ready[name]))
        return counts

    def used(self) -> list[dict[int, int]]:
        """Instances that each serving version uses, by max_length; empty where it has not reported yet."""
        reported = used_instances(self.metrics, self.model.name)
        return [reported.get(version, {}) for version in self.versions()]


def partitioned_model(repository: Path, model: str) -> PartitionedModel:
    """The newest version of a partitioned model.

    Raises:
        NotFound: Nothing is published under this name.
        Unsupported: The model is not partitioned.
    """
    graph = ModelGraph.read(repository)
    if not graph.versions(model):
        raise NotFound(f"model '{model}' has no published version in {repository}")
    found, owner = graph.partitioned(model), graph.owner(model)
    if owner is not None:
        raise Unsupported(f"model '{model}' is a runtime of '{owner.name}': allocate instances to '{owner.name}'")
    if found is None:
        raise Unsupported(f"model '{model}' is not partitioned: all its runtimes run inside one instance")
    return found


def wanted_now(repository: Path, model: PartitionedModel) -> dict[int, int]:
    """Instances requested at present, by max_length ascending: those of the file, else of the runtimes' config.pbtxt.

    A file for other runtimes applies where it names these.

    Args:
        repository: Folder of the model repository.
        model: The partitioned model.

    Raises:
        InvalidArgument: The file or a config.pbtxt is not valid.
    """
    front = repository / model.name
    configured, allocation = configured_instances(front, model.lengths), read_allocation(front)
    given = allocation.instances if allocation is not None else {}
    return {length: given.get(length, configured[length]) for length in model.lengths}


def plan_steps(front: str, loaded: Mapping[int, int], wanted: Mapping[int, int]) -> list[tuple[InstanceChange, ...]]:
    """The models to load in order, in batches that are loaded at the same time.

    Args:
        front: Name of the partitioned model.
        loaded: Present instances by max_length, in tokens.
        wanted: Requested instances, for the same lengths.
    """
    steps = [
        InstanceChange(runtime_model(front, n), n, loaded[n], wanted[n])
        for n in sorted(wanted)
        if loaded[n] != wanted[n]
    ]
    shrinking = [step for step in steps if step.after < step.before]
    growing = [step for step in steps if step.after > step.before]
    return [tuple(half[at : at + _BATCH]) for half in (shrinking, growing) for at in range(0, len(half), _BATCH)]


def write_wanted(repository: Path, model: PartitionedModel, wanted: Mapping[int, int]) -> None:
    """Write an allocation for the next start.

    Args:
        repository: Folder of the model repository.
        model: The partitioned model.
        wanted: Requested instances by max_length, for every runtime.

    Raises:
        InvalidArgument: The counts are not valid.
        Unavailable: Another process is changing the instances.
    """
    allocation = make_allocation(wanted)
    allocation.check(model.lengths)
    with exclusive_change(repository / model.name):
        write_allocation(repository / model.name, allocation)


def allocate(
    front: LiveFront, wanted: Mapping[int, int], report: Report, wait_s: float = _WAIT_S, *, entrance: bool = True
) -> None:
    """Change the instances of a serving model's runtimes; return when the model uses them.

    Args:
        front: The partitioned model, which must serve.
        wanted: Requested instances by max_length, for every runtime.
        report: Receiver of progress, one sentence per call.
        wait_s: Longest time in seconds for the model to stop using instances, and to start using new ones.
        entrance: Whether the model accepts queries; if not, it may be left without the longest runtime.

    Raises:
        InvalidArgument: The counts are not valid; nothing was changed.
        Unavailable: Another server serves the model too, another process is changing its instances, the longest
            runtime stays unloaded, or the model did not follow in time; call again.
        Internal: A model does not load; the message has the reason. The front uses what is loaded. Call again.
    """
    model = front.model
    folder = front.repository / model.name
    target = make_allocation(wanted, entrance=entrance)
    target.check(model.lengths)
    check_one_server(front.repository, model.name, front.metrics)
    with exclusive_change(folder):
        before = read_allocation(folder)
        was_entrance = before is None or before.entrance
        loaded = _wait_until_longest_loaded(front, wait_s) if was_entrance else front.loaded()
        accepts = entrance and was_entrance  # until all instances are loaded
        batches = plan_steps(model.name, loaded, target.instances)
        if batches:
            change = make_allocation(target.instances, loaded, entrance=accepts)
            write_allocation(folder, change)
            least = change.serving()
            _wait(front, lambda used: all(used.get(n, 0) <= least[n] for n in least), wait_s, "stop using instances")
            report(f"{model.name} uses no more than {format_counts(least)} while the instances change")
        for batch in batches:
            _load(front, batch)
            loaded.update({step.max_length: step.after for step in batch})
            write_allocation(folder, make_allocation(target.instances, loaded, entrance=accepts))
            for step in batch:
                report(str(step))
        write_allocation(folder, target)
        _wait(front, lambda used: used == target.instances, wait_s, "start to use its instances")
        report(f"{model.name} uses {format_counts(target.instances)}")


def check_one_server(repository: Path, front: str, metrics: str | None) -> None:
    """Check that no other running server of this user would apply an allocation that it has not loaded.

    Args:
        repository: Folder of the model repository.
        front: Name of the partitioned model.
        metrics: `host:port` of the metrics of the server that may serve it; None for no server.

    Raises:
        Unavailable: Another server serves it too, or does not answer.
    """
    for state in running_servers():
        if state.repository != repository.resolve() or state.metrics == metrics:
            continue
        try:
            index = state.control().index()
        except TidalError:
            index = None
        if index is None or any(row.name == front and row.state == "READY" for row in index):
            raise Unavailable(
                f"the server on {state.http} serves '{front}' from the same repository too and would use instances "
                f"that it has not loaded: stop one of the servers first"
            )


def format_counts(instances: Mapping[int, int]) -> str:
    """Instances by max_length in the form of the command line: `64=1 512=2`."""
    return " ".join(f"{length}={count}" for length, count in sorted(instances.items()))


def _load(front: LiveFront, batch: tuple[InstanceChange, ...]) -> None:
    def load(model: str) -> None:
        load_model(front.control, ModelGraph.read(front.repository), model)

    with ThreadPoolExecutor(len(batch)) as pool:
        loads = [(step, pool.submit(load, step.model)) for step in batch]
    for step, each in loads:
        try:
            each.result()
        except TidalError as error:
            raise type(error)(f"model '{step.model}' does not load: {sentence(str(error))}") from None


def _wait_until_longest_loaded(front: LiveFront, wait_s: float) -> dict[int, int]:
    """Loaded instances, once the longest runtime is loaded: no other can run every query while it is restarted."""
    end = time.monotonic() + wait_s
    while not (loaded := front.loaded())[front.model.lengths[-1]]:
        if time.monotonic() > end:
            name, model = front.model.name, front.model.runtime_models[front.model.lengths[-1]]
            raise Unavailable(
                f"the longest runtime of '{name}', '{model}', is not loaded: try again, or tidal models load {name}"
            )
        time.sleep(_POLL_S)
    return loaded


def _wait(front: LiveFront, done: Callable[[dict[int, int]], bool], wait_s: float, what: str) -> None:
    end = time.monotonic() + wait_s
    # A model without a serving version has not changed anything.
    while not (versions := front.used()) or not all(used and done(used) for used in versions):
        if time.monotonic() > end:
            raise Unavailable(f"'{front.model.name}' did not {what} within {wait_s:g} s: give the same counts again")
        time.sleep(_POLL_S)
