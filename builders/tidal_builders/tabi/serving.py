"""Measures levels and pairs of levels through a tritonserver that runs for as long as that takes."""

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
from typing import Literal

import numpy as np

from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import Internal, TidalError
from tidal.server.backend_directory import assemble
from tidal.server.endpoints import choose_endpoints
from tidal.server.installation import find_installation
from tidal.server.launch import Launch
from tidal.server.process import ServerProcess
from tidal_builders.tabi.overhead import Times
from tidal_builders.tabi.passes import Indices
from tidal_builders.tabi.probe import Probe, write_probe
from tidal_builders.tabi.versions import LevelVersion
from tidal_builders.timing import Progress
from tidal_client import Client, RequestError
from tidal_client.load import text_inputs

# Queries that each way is measured with, at most.
_QUERIES = 96
# The ways take turns after so many queries, so that other work on the machine meets all of them.
_BLOCK = 16
_WARM_UP = 3
# An engine pauses before each query, as it does in a server that reads a query and answers the one before.
_PAUSE_S = 0.002
_EXIT_S = 5


class CannotServe(Exception):
    """Why the build cannot measure through a server."""


@dataclass(frozen=True, slots=True)
class ProbedLevel:
    """A level whose serving is measured.

    Attributes:
        name: short name from the spec.
        version: its published version.
        order: place of each of the cascade's labels in its logits; None: the same order.
        engine_ms: runs its engine in this process on a query, by its index, and returns the milliseconds that it took.
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
    task: Literal["classification", "regression"],
    labels: Sequence[str],
    progress: Progress,
) -> Times:
    """Measure each level alone and each pair of levels through a server, one query at a time.

    The engines run by turns with the server: other work on the machine, which comes and goes, then meets both.

    Args:
        levels: ascending by score.
        texts: all queries, n.
        rows: indices of those to measure with; of many, evenly spread ones.
        task: of the cascade.
        labels: of the cascade.
        progress: called with the share that is done.

    Raises:
        CannotServe: there is no tritonserver, it does not start, a level cannot be served here, or a query fails.
    """
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(_QUERIES, len(rows))).astype(int))]
    for level in levels:
        if level.version.task is None and load_arlo_manifest(level.version.folder).placement == "partitioned":
            raise CannotServe(f"level '{level.name}' is partitioned, and its runtimes are models of a running server")
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
                raise CannotServe(f"a query of the data was not answered: {error}") from None


def _measure(
    client: Client,
    model: str,
    probe: Probe,
    levels: Sequence[ProbedLevel],
    texts: Sequence[tuple[str, ...]],
    rows: Indices,
    progress: Progress,
) -> Times:
    """Measure the probe's ways and the levels' engines, block by block."""
    inputs = text_inputs(*([list(column) for column in zip(*(texts[row] for row in rows), strict=True)]))

    def ask(way: int, query: int) -> float:
        begin = time.perf_counter()
        answer = client.infer(model, inputs[query], outputs=["confidence", "level"], accuracy=probe.accuracy(way))
        took_ms = (time.perf_counter() - begin) * 1e3
        if answer["level"].item() != probe.ways[way].levels[-1] + 1:
            raise Internal(f"level {answer['level'].item()} answered a query that was sent to {probe.ways[way]}")
        return took_ms

    def run(level: ProbedLevel, query: int) -> float:
        time.sleep(_PAUSE_S)
        return level.engine_ms(int(rows[query]))

    turns = [*(partial(ask, way) for way in range(len(probe.ways))), *(partial(run, level) for level in levels)]
    taken = np.zeros((len(turns), len(rows)))
    starts = range(0, len(rows), _BLOCK)
    for number, start in enumerate(starts):
        block = range(start, min(start + _BLOCK, len(rows)))
        for place in range(len(turns)):
            progress((number + place / len(turns)) / len(starts))
            turn = (place + number) % len(turns)
            for query in block[:_WARM_UP]:
                turns[turn](query)
            taken[turn, block] = [turns[turn](query) for query in block]
    progress(1.0)
    return Times(probe.ways, rows, taken[: len(probe.ways)], taken[len(probe.ways) :])


def _unused_name(models: set[str]) -> str:
    name = "probe"
    while name in models:
        name += "_"
    return name


@contextmanager
def _server(folder: Path, repository: Path, models: tuple[str, ...]) -> Iterator[str]:
    """A tritonserver on free ports of this machine alone, until the block ends; its gRPC address."""
    prefix = f"tidal_build_{os.getpid()}_"
    try:
        installation = find_installation()
        ports = choose_endpoints("127.0.0.1", 0, 0, 0)
        backends = assemble(folder / "backends", installation)
        launch = Launch(installation, repository, backends, models, ports, prefix, None, _EXIT_S)
        process = ServerProcess(launch, folder / "log")
    except TidalError as error:
        raise CannotServe(str(error)) from None
    now = threading.Event()
    try:
        try:
            process.wait_live(now)
            failed = process.failed_models()
        except TidalError as error:
            raise CannotServe(str(error)) from None
        if failed:
            raise CannotServe("; ".join(f"model '{each.name}' does not load: {each.reason}" for each in failed))
        yield f"grpc://{ports.address(ports.grpc)}"
    finally:
        process.end(now)
