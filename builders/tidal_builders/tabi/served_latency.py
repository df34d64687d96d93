"""Measures levels and pairs of levels through a tritonserver that runs for the duration of the measurement."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import Internal, TidalError
from tidal.server.backend_directory import assemble
from tidal.server.endpoints import choose_endpoints
from tidal.server.installation import find_installation
from tidal.server.launch import Launch
from tidal.server.process import ServerProcess
from tidal.tabi.manifest import CascadeTask
from tidal_builders.tabi.data import Indices
from tidal_builders.tabi.overhead import ServedTimes
from tidal_builders.tabi.probe import Probe, write_probe
from tidal_builders.tabi.versions import LevelVersion
from tidal_builders.timing import Progress
from tidal_client import Client, RequestError
from tidal_client.load import text_inputs

# Maximum number of queries that each route is measured with.
_QUERIES = 96
# The routes alternate after so many queries, so that other work on the machine affects all of them.
_BLOCK = 16
_WARM_UP = 3
# Pause of an engine before each query, as in a server that receives a query and answers the previous one.
_PAUSE_S = 0.002
_EXIT_S = 5


class ServingUnavailable(Exception):
    """The build cannot measure through a server; the message says why."""


@dataclass(frozen=True, slots=True)
class ProbedLevel:
    """A level whose serving is measured.

    Attributes:
        name: Short name from the spec.
        version: Published version of the level.
        order: Index of each of the cascade's labels in its logits; None: the same order.
        engine_ms: Runs its engine in this process on a query, by index, and returns the milliseconds that it took.
    """

    name: str
    version: LevelVersion
    order: tuple[int, ...] | None
    engine_ms: Callable[[int], float]


def measure_serving(
    levels: Sequence[ProbedLevel],
    texts: Sequence[tuple[str, ...]],
    rows: Indices,
    *,
    task: CascadeTask,
    labels: Sequence[str],
    progress: Progress,
) -> ServedTimes:
    """Measure each level alone and each pair of levels through a server, one query at a time.

    The engines alternate with the server, so that intermittent other work on the machine affects both.

    Args:
        levels: Levels, ascending by score.
        texts: Texts of all queries, n.
        rows: Indices of the queries to measure with; of many, an evenly spaced subset is used.
        task: Task of the cascade.
        labels: Labels of the cascade.
        progress: Receives the completed share, 0 to 1.

    Raises:
        ServingUnavailable: There is no tritonserver, it does not start, a level cannot be served, or a query fails.
    """
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(_QUERIES, len(rows))).astype(int))]
    for level in levels:
        if level.version.task is None and load_arlo_manifest(level.version.folder).placement == "partitioned":
            raise ServingUnavailable(
                f"level '{level.name}' is partitioned: its runtimes are models of a running server, which a build "
                "cannot measure; build the level with 'placement: polymorphic' to measure it"
            )
    with TemporaryDirectory(prefix="tidal-build-") as folder:
        repository = Path(folder) / "repository"
        repository.mkdir()
        for model in {level.version.folder.parent.resolve() for level in levels}:
            (repository / model.name).symlink_to(model, target_is_directory=True)
        name = _unused_name({level.version.model for level in levels})
        probe = write_probe(
            repository / name,
            [level.name for level in levels],
            [level.version for level in levels],
            [level.order for level in levels],
            task=task,
            labels=labels,
            pairs=len(texts[0]) > 1,
        )
        shared = {level.version.model for level in levels if level.version.task is not None}
        with _server(Path(folder), repository, (*sorted(shared), name)) as address, Client(address) as client:
            try:
                return _measure(client, name, probe, levels, texts, rows, progress)
            except RequestError as error:
                raise ServingUnavailable(f"a query of the data was not answered: {error}") from None


def _measure(
    client: Client,
    model: str,
    probe: Probe,
    levels: Sequence[ProbedLevel],
    texts: Sequence[tuple[str, ...]],
    rows: Indices,
    progress: Progress,
) -> ServedTimes:
    """Measure the probe's routes and the levels' engines, block by block."""
    inputs = text_inputs(*([list(column) for column in zip(*(texts[row] for row in rows), strict=True)]))

    def send(route: int, query: int) -> float:
        begin = time.perf_counter()
        answer = client.infer(model, inputs[query], outputs=["confidence", "level"], accuracy=probe.accuracy(route))
        took_ms = (time.perf_counter() - begin) * 1e3
        if answer["level"].item() != probe.routes[route].levels[-1] + 1:
            raise Internal(f"level {answer['level'].item()} answered a query that was sent to {probe.routes[route]}")
        return took_ms

    def run(level: ProbedLevel, query: int) -> float:
        time.sleep(_PAUSE_S)
        return level.engine_ms(int(rows[query]))

    measured = [
        *(partial(send, route) for route in range(len(probe.routes))),
        *(partial(run, level) for level in levels),
    ]
    times_ms = np.zeros((len(measured), len(rows)))
    starts = range(0, len(rows), _BLOCK)
    for number, start in enumerate(starts):
        block = range(start, min(start + _BLOCK, len(rows)))
        for place in range(len(measured)):
            progress((number + place / len(measured)) / len(starts))
            index = (place + number) % len(measured)
            for query in block[:_WARM_UP]:
                measured[index](query)
            times_ms[index, block] = [measured[index](query) for query in block]
    progress(1.0)
    return ServedTimes(probe.routes, rows, times_ms[: len(probe.routes)], times_ms[len(probe.routes) :])


def _unused_name(models: set[str]) -> str:
    name = "probe"
    while name in models:
        name += "_"
    return name


@contextmanager
def _server(folder: Path, repository: Path, models: tuple[str, ...]) -> Iterator[str]:
    """Run a tritonserver on free ports of the loopback interface until the block ends; yields its gRPC address."""
    prefix = f"tidal_build_{os.getpid()}_"
    try:
        installation = find_installation()
        ports = choose_endpoints("127.0.0.1", 0, 0, 0)
        backends = assemble(folder / "backends", installation)
        launch = Launch(installation, repository, backends, models, ports, prefix, None, _EXIT_S)
        process = ServerProcess(launch, folder / "log")
    except TidalError as error:
        raise ServingUnavailable(str(error)) from None
    now = threading.Event()
    try:
        try:
            process.wait_live(now)
            failed = process.failed_models()
        except TidalError as error:
            raise ServingUnavailable(str(error)) from None
        if failed:
            raise ServingUnavailable("; ".join(f"model '{each.name}' does not load: {each.reason}" for each in failed))
        yield f"grpc://{ports.address(ports.grpc)}"
    finally:
        process.end(now)
