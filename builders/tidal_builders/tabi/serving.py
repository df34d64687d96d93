"""What serving adds to the engines' time, measured through a tritonserver that runs for as long as that takes.

The levels' answers come with the time of their engines. That leaves out transport, tokenisation, queues and threads,
and what a query pays for going on to a further level. On short texts this is more than the engines take, and a query
that two levels read pays more of it than one that a single model reads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from tidal import device
from tidal.errors import Internal, TidalError
from tidal.manifest import load_manifest
from tidal.server.backend_directory import assemble
from tidal.server.endpoints import choose_endpoints
from tidal.server.installation import find_installation
from tidal.server.launch import Launch
from tidal.server.process import ServerProcess
from tidal.tabi.manifest import Onward, ServingOverhead
from tidal_builders.tabi.passes import Indices
from tidal_builders.tabi.probe import Probe, Way, write_probe
from tidal_builders.tabi.versions import LevelVersion
from tidal_builders.timing import Progress
from tidal_client import Client
from tidal_client.load import text_inputs

Floats = npt.NDArray[np.float64]

# Queries that each way is measured with, at most.
_QUERIES = 96
# The ways take turns after so many queries, so that other work on the machine meets all of them.
_BLOCK = 16
_WARM_UP = 3
# Share of the slowest and of the fastest queries that a mean leaves out: other work on the machine slows some down.
_TRIMMED = 0.25
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
        engine_ms: time of its engine on each query, float64 [n].
    """

    name: str
    version: LevelVersion
    order: tuple[int, ...] | None
    engine_ms: Floats


def measure_serving(
    levels: Sequence[ProbedLevel],
    texts: Sequence[tuple[str, ...]],
    rows: Indices,
    *,
    task: Literal["classification", "regression"],
    labels: Sequence[str],
    progress: Progress,
) -> ServingOverhead:
    """Measure the overhead of each level alone and of each pair of levels, one query at a time.

    Args:
        levels: ascending by score.
        texts: all queries, n.
        rows: indices of those to measure with; of many, evenly spread ones.
        task: of the cascade.
        labels: of the cascade.
        progress: called with the share that is done.

    Raises:
        CannotServe: there is no tritonserver, it does not start, or a level cannot be served here.
    """
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(_QUERIES, len(rows))).astype(int))]
    for level in levels:
        if level.version.task is None and load_manifest(level.version.folder).placement == "partitioned":
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
            served_ms = _ask_all(client, name, probe, [texts[row] for row in rows], progress)
    return overhead(levels, {way: served_ms[number] for number, way in enumerate(probe.ways)}, rows)


def overhead(levels: Sequence[ProbedLevel], served_ms: Mapping[Way, Floats], rows: Indices) -> ServingOverhead:
    """What the served times have beyond the engines' times.

    Args:
        levels: ascending by score.
        served_ms: of each way, the time of each measured query, [rows].
        rows: indices of the measured queries.
    """

    def beyond(way: Way) -> float:
        engines = np.sum([levels[place].engine_ms[rows] for place in way.levels], axis=0)
        return float(trim_mean(served_ms[way] - engines, _TRIMMED))

    # Differences of noisy times may be below 0, which no part of serving takes.
    alone = [max(0.0, beyond(Way((place,)))) for place in range(len(levels))]
    onward = []
    for way in served_ms:
        if len(way.levels) != 2 or way.pruned:
            continue
        below, above = way.levels
        pruned = Way(way.levels, pruned=True)
        onward.append(
            Onward(
                below=levels[below].name,
                above=levels[above].name,
                ms=max(0.0, beyond(way) - alone[below]),
                pruned_ms=max(0.0, beyond(pruned) - alone[below]) if pruned in served_ms else None,
            )
        )
    return ServingOverhead(
        processor=device.cpu().name,
        queries=len(rows),
        alone_ms={level.name: ms for level, ms in zip(levels, alone, strict=True)},
        onward=tuple(onward),
    )


def _ask_all(client: Client, model: str, probe: Probe, texts: Sequence[tuple[str, ...]], progress: Progress) -> Floats:
    """Milliseconds of each query on each way, [ways, queries]."""
    inputs = text_inputs(*([list(column) for column in zip(*texts, strict=True)]))

    def ask(way: int, query: int) -> float:
        begin = time.perf_counter()
        answer = client.infer(model, inputs[query], outputs=["confidence", "level"], accuracy=probe.accuracy(way))
        took_ms = (time.perf_counter() - begin) * 1e3
        if answer["level"].item() != probe.ways[way].levels[-1] + 1:
            raise Internal(f"level {answer['level'].item()} answered a query that was sent to {probe.ways[way]}")
        return took_ms

    served = np.zeros((len(probe.ways), len(texts)))
    starts = range(0, len(texts), _BLOCK)
    for number, start in enumerate(starts):
        block = range(start, min(start + _BLOCK, len(texts)))
        shift = number % len(probe.ways)
        for turn in range(len(probe.ways)):
            way = (turn + shift) % len(probe.ways)
            progress((number + turn / len(probe.ways)) / len(starts))
            for query in block[:_WARM_UP]:
                ask(way, query)
            for query in block:
                served[way, query] = ask(way, query)
    progress(1.0)
    return served


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
