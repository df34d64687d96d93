"""One and four entrances of four real servers with emulated devices."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster.emulated.devices import EmulatedModel
from benchmarks.cluster.emulated.nodes import plan_nodes, serving_nodes, write_tables
from benchmarks.cluster.emulated.runs import EmulatedRun, requests_of, run
from benchmarks.cluster.simulated.figures import Setting
from benchmarks.cluster.simulated.inputs import ClusterData, Stream
from benchmarks.report import Claim, Report, progress
from tidal.simulator.arlo import SystemName

MODEL = "arlo_nodes"
_NODES = {"a": 3, "b": 3, "c": 2, "d": 2}
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
    instances = plan_nodes(data, setting, _NODES)
    with serving_nodes(source, EmulatedModel(MODEL, stream, stretch, ()), instances) as servers:
        for seed in range(_ROUNDS):
            requests = requests_of(data, setting, _SECONDS, 20 + seed)
            found = {}
            for number in (1, 4) if seed % 2 == 0 else (4, 1):
                progress(f"{number} of 4 entrances, round {seed + 1} of {_ROUNDS}, {len(requests.times)} queries")
                write_tables(servers, MODEL, instances, number)
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


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
