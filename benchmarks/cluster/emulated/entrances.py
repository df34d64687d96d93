"""One and four entrances of four real servers with emulated devices."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.cluster.emulated.devices import EmulatedModel, write_model
from benchmarks.cluster.emulated.runs import EmulatedRun, history_of, requests_of, run, warm
from benchmarks.cluster.simulated.figures import Setting
from benchmarks.cluster.simulated.inputs import MAX_LENGTHS, ClusterData, Stream
from benchmarks.report import Claim, Report, progress
from tidal.arlo.scheduling import (
    ClusterNode,
    RuntimeProfile,
    assign_nodes,
    demand_by_runtime,
    plan_cluster,
    preferred_nodes,
)
from tidal.repository.cluster_table import ClusterTable, RemoteNode, write_cluster_table
from tidal.server.child import RunningServer, tidal_serve
from tidal.simulator.arlo import SystemName

MODEL = "arlo_nodes"
_NODES = {"a": 3, "b": 3, "c": 2, "d": 2}
_TABLE_READ_S = 1.0
# Queries per second, and seconds of a round, in the paper's time.
_RATE, _SECONDS, _ROUNDS = 3000, 2, 3


def measure(report: Report, source: Path, data: ClusterData, stream: Stream, stretch: float) -> None:
    """Compare four entrances with one, on the same servers, devices and arrivals.

    Args:
        report: Report to add to.
        source: Repository with the built model.
        data: Arrivals and lengths.
        stream: Model and objective.
        stretch: Factor on all times.
    """
    setting = Setting("entrances", stream, sum(_NODES.values()), _RATE, (SystemName.ARLO,), False, (_SECONDS,) * 2)
    rows: list[tuple[int, EmulatedRun]] = []
    ratios = []
    instances = _plan(data, setting)
    with _serving(source, setting, stretch, instances) as servers:
        for seed in range(_ROUNDS):
            requests = requests_of(data, setting, _SECONDS, 20 + seed)
            found = {}
            for number in (1, 4) if seed % 2 == 0 else (4, 1):
                progress(f"{number} of 4 entrances, round {seed + 1} of {_ROUNDS}, {len(requests.times)} queries")
                _write_tables(servers, instances, number)
                urls = [server.grpc for server in list(servers.values())[:number]]
                found[number] = run(urls, MODEL, requests, stretch)
                rows.append((number, found[number]))
            ratios.append(found[4].mean_ms / found[1].mean_ms)
    table = [
        [
            str(number),
            _median([each.mean_ms for n, each in rows if n == number]),
            _median([each.p98_ms for n, each in rows if n == number]),
            str(sum(each.failed for n, each in rows if n == number)),
            _median([100 * each.cpu for n, each in rows if n == number]),
        ]
        for number in (1, 4)
    ]
    title = f"entrances of four servers with {', '.join(map(str, _NODES.values()))} devices, {setting.rate:g} queries/s"
    report.add_table(title, ["entrances", "mean ms", "p98 ms", "failed", "cores used, %"], table)
    report.measured["entrances"] = {
        str(number): [{"mean_ms": each.mean_ms, "p98_ms": each.p98_ms} for n, each in rows if n == number]
        for number in (1, 4)
    }
    note = f"medians of {_ROUNDS} rounds, {min(ratios):.3f} to {max(ratios):.3f}; four servers on this machine"
    report.claims.append(Claim("multi_entrance_penalty[4]", "<= 1.10", statistics.median(ratios), note=note))


def _plan(data: ClusterData, setting: Setting) -> dict[str, tuple[int, ...]]:
    """Return the instances by runtime of each node, as the controller plans them."""
    stream, history = setting.stream, history_of(data, setting)
    profiles = [RuntimeProfile.from_service(each, stream.slo_s, 120.0) for each in stream.times.static_s]
    demand = demand_by_runtime(history.by_length, MAX_LENGTHS, observed_s=history.seconds, slo_s=stream.slo_s)
    none = (0,) * len(MAX_LENGTHS)
    nodes = [ClusterNode(name, devices, none, none) for name, devices in _NODES.items()]
    return dict(zip(_NODES, plan_cluster(nodes, profiles, demand, 0.0).after, strict=True))


@contextmanager
def _serving(
    source: Path, setting: Setting, stretch: float, instances: dict[str, tuple[int, ...]]
) -> Iterator[dict[str, RunningServer]]:
    """Serve the four nodes until the block ends."""
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder, ExitStack() as stack:
        servers = {}
        for name, counts in instances.items():
            repository = Path(folder) / name
            repository.mkdir()
            write_model(source, repository, EmulatedModel(MODEL, setting.stream, stretch, counts))
            progress(f"starting node {name}")
            servers[name] = stack.enter_context(tidal_serve(repository, "--exit-timeout", "3"))
            warm(servers[name].grpc, MODEL)
        yield servers


def _write_tables(servers: dict[str, RunningServer], instances: dict[str, tuple[int, ...]], entrances: int) -> None:
    """Write what the controller writes when queries arrive at the first nodes."""
    names: Sequence[str] = list(servers)
    assigned = assign_nodes(instances, dict.fromkeys(names[:entrances], 1.0))
    for name, server in servers.items():
        ranks = {other: rank for rank, other in enumerate(preferred_nodes(name, assigned, names))}
        nodes = {
            other: RemoteNode(
                grpc=servers[other].state.grpc,
                instances=dict(zip(MAX_LENGTHS, instances[other], strict=True)),
                rank=rank,
                tls=None,
            )
            for other, rank in ranks.items()
        }
        table = ClusterTable(nodes=nodes, share=1 / entrances)
        write_cluster_table(server.state.repository / MODEL, table)
    time.sleep(_TABLE_READ_S)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
