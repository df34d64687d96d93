"""What serving adds to the engines' time, measured through a tritonserver that runs for as long as that takes.

The levels' answers come with the time of their engines. That leaves out transport, tokenisation, queues and threads,
and what a query pays for going on to a further level. On short texts this is more than the engines take, and a query
that two levels read pays more of it than one that a single model reads.
"""

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
# An engine pauses before each query, as it does in a server that reads a query and answers the one before.
_PAUSE_S = 0.002
# Share of the slowest and of the fastest queries that a mean leaves out: other work on the machine slows some down.
_TRIMMED = 0.25
# Factor by which the engines' times may differ from those that the levels' answers came with.
_MOST_DRIFT = 1.3
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


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of queries, one at a time.

    Attributes:
        ways: that were measured through the server.
        rows: indices of the queries, [n].
        served: of each way through the server, [ways, n].
        engines: of each level's engine alone, measured by turns with the server, [levels, n].
    """

    ways: tuple[Way, ...]
    rows: Indices
    served: Floats
    engines: Floats


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
            return _measure(client, name, probe, levels, texts, rows, progress)


def overhead(levels: Sequence[str], times: Times, collected: Sequence[Floats]) -> ServingOverhead:
    """What the served times have beyond the engines' times.

    The means that come of it are those that were served: of each level alone, and of each pair of levels. An engine
    that took longer by itself than a served query, as on a machine with other work, counts as long as that query.

    Args:
        levels: names, ascending by score.
        times: that were measured.
        collected: of each level, the time of its engine on each query as its answers come with it, [all queries].
    """
    served = {way: _mean(each) for way, each in zip(times.ways, times.served, strict=True)}
    alone_served = [served[Way((place,))] for place in range(len(levels))]
    engines = [min(_mean(each), most) for each, most in zip(times.engines, alone_served, strict=True)]
    alone = [most - engine for most, engine in zip(alone_served, engines, strict=True)]

    def hop(way: Way) -> float:
        below, above = way.levels
        # Differences of noisy times may be below 0, which no part of serving takes.
        return max(0.0, served[way] - alone_served[below] - engines[above])

    onward = []
    for way in times.ways:
        if len(way.levels) != 2 or way.pruned:
            continue
        below, above = way.levels
        pruned = Way(way.levels, pruned=True)
        onward.append(
            Onward(
                below=levels[below],
                above=levels[above],
                ms=hop(way),
                pruned_ms=hop(pruned) if pruned in served else None,
            )
        )
    return ServingOverhead(
        processor=device.cpu().name,
        queries=len(times.rows),
        alone_ms=dict(zip(levels, alone, strict=True)),
        onward=tuple(onward),
        engine_scale={
            name: engine / _mean(each[times.rows])
            for name, engine, each in zip(levels, engines, collected, strict=True)
        },
    )


def disturbance_warning(levels: Sequence[str], times: Times, collected: Sequence[Floats]) -> str | None:
    """A warning where the engines' times show other work on the machine; None elsewhere.

    They do where they changed since the levels' answers were collected, or exceed a served query's.

    Args:
        levels: names, ascending by score.
        times: that were measured.
        collected: of each level, the time of its engine on each query as its answers come with it, [all queries].
    """
    then = [_mean(each[times.rows]) for each in collected]
    now = [_mean(each) for each in times.engines]
    served = [_mean(times.served[times.ways.index(Way((place,)))]) for place in range(len(levels))]
    if all(
        1 / _MOST_DRIFT <= after / before <= _MOST_DRIFT and after <= most
        for before, after, most in zip(then, now, served, strict=True)
    ):
        return None
    changes = ", ".join(
        f"{name} {before:.2f} ms, later {after:.2f} ms, and {most:.2f} ms with all that serving adds"
        for name, before, after, most in zip(levels, then, now, served, strict=True)
    )
    return (
        f"the machine was not quiet while latencies were measured (engine of {changes}), and the choice depends on "
        "them: build again with --force when it is"
    )


def _mean(times: Floats) -> float:
    return float(trim_mean(times, _TRIMMED))


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
