"""`python -m benchmarks.cluster.many_nodes [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cluster.many_nodes.plot import GIVEN_BACK, SERVED, WAYS, plot
from benchmarks.cluster.simulated.inputs import BASE, LARGE, ClusterData, Stream
from benchmarks.report import Claim, Report, progress
from tidal.simulator.arlo import LengthHistory, ServiceTimes, SyntheticRequests, length_history
from tidal.simulator.arlo.nodes import NodeOutage, NodesResult, SimulatedNodes, simulate_nodes

NODES, DEVICES = 125, 8
#: Bert-Large with all latencies and the objective ten times as long, so that 1,000 devices have a load for minutes.
SLOW = Stream(
    "Bert-Large, ten times slower",
    LARGE.slo_s * 10,
    ServiceTimes(LARGE.times.max_lengths, tuple(10 * seconds for seconds in LARGE.times.static_s)),
)
_LOAD = 0.7
_ENTRANCES = 4


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes with equal numbers of devices.

    Attributes:
        nodes: Number of nodes.
        devices: Devices of each node.
        stream: The model and its service times.
        loads: Shares of the devices' time that the queries need.
        entrances: Numbers of entrances that are compared with one.
    """

    nodes: int
    devices: int
    stream: Stream
    loads: tuple[float, ...]
    entrances: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.nodes} nodes of {self.devices} devices"


_CLUSTERS = (Cluster(4, 10, BASE, (0.4, 0.7, 0.9), (2, 4)), Cluster(NODES, DEVICES, SLOW, (0.7, 0.9), (2, 4, 8)))


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a run.

    Attributes:
        seconds: Duration of the arrivals while nodes are lost, in seconds.
        period_s: Time between two plans in seconds.
        start_s: Start-up time of a node in seconds.
        rounds: Number of rounds of each number of entrances.
        round_s: Duration of their arrivals in seconds.
    """

    seconds: int
    period_s: float
    start_s: float
    rounds: int
    round_s: int


FULL = Size(seconds=300, period_s=120.0, start_s=60.0, rounds=3, round_s=6)
QUICK = Size(seconds=60, period_s=12.0, start_s=10.0, rounds=1, round_s=4)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with twitter_2021_rate and tweet_lengths.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Simulate 1,000 devices on 125 nodes that are lost and join, and 1 to 8 entrances."""
    report, inputs, size = Report("many_nodes", quick), ClusterData(data), QUICK if quick else FULL
    print(f"{inputs.description}; {SLOW.name}, SLO {SLOW.slo_s:g} s, {NODES} nodes of {DEVICES} devices")
    report.measured |= {"data": inputs.description, "model": SLOW.name, "slo_s": SLOW.slo_s}
    _losses(report, inputs, size)
    _entrances(report, inputs, size)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def outages(size: Size) -> tuple[NodeOutage, ...]:
    """Return what happens: ten nodes join late, one node is lost, then an entrance, then five nodes at once."""
    late = tuple(NodeOutage(node, 0.0, 0.15 * size.seconds) for node in range(115, 125))
    one, entrance = NodeOutage(50, 0.35 * size.seconds, size.start_s), NodeOutage(1, 0.5 * size.seconds, size.start_s)
    return (*late, one, entrance, *(NodeOutage(node, 0.7 * size.seconds, size.start_s) for node in range(60, 65)))


def _losses(report: Report, data: ClusterData, size: Size) -> None:
    """Lose nodes under load, and time the simulation."""
    history = _history(data, 0)
    requests = data.workload(_rate(history, _CLUSTERS[-1], _LOAD), size.seconds)
    nodes = SimulatedNodes((DEVICES,) * NODES, _ENTRANCES, outages=outages(size))

    def shown(now: float) -> None:
        if now % 60 == 0:
            progress(f"losing nodes: {now:.0f} of {size.seconds} simulated seconds")

    gc.collect()
    began = time.process_time()
    result = simulate_nodes(
        requests,
        SLOW.times,
        nodes,
        slo_s=SLOW.slo_s,
        history=history,
        period_s=size.period_s,
        on_second=shown,
    )
    took = time.process_time() - began
    answered = len(result.latencies_s)
    arrived = sum(len(second.times) for second in requests)
    rows = [
        [f"{plan.at:.0f}", str(round(plan.moves)), plan.reason if len(plan.reason) < 90 else f"{plan.reason[:87]}..."]
        for plan in result.plans
    ]
    report.add_table("plans of the controller", ["s", "moves", "reason"], rows)
    moments = timeline(result, size.seconds)
    rows = [
        [name, *_around(result, at, SLOW.slo_s)]
        for name, at in {
            "the whole run": None,
            "a node is lost": 0.35 * size.seconds,
            "an entrance is lost": 0.5 * size.seconds,
            "five nodes are lost": 0.7 * size.seconds,
        }.items()
    ]
    title = f"{_ENTRANCES} entrances, load {_LOAD:.0%}: queries that arrived within 1 s before to 5 s after a loss"
    report.add_table(title, ["queries of", "number", "mean ms", "p98 ms", "slowest ms", "over SLO"], rows)
    report.measured["losses"] = {
        **asdict(size),
        "entrances": _ENTRANCES,
        "load": _LOAD,
        "queries": answered,
        "again": result.again,
        "remote": result.remote,
        "processor_s": took,
        "outages": [asdict(each) for each in nodes.outages],
        "plans": [asdict(each) for each in result.plans],
        "timeline": moments,
    }
    note = f"processor time on one core; {answered:,} queries in {size.seconds} s on {NODES} nodes of {DEVICES} devices"
    report.claims.append(Claim("sim_1000_gpus_s", "<= 300", took, note=note))
    note = f"{arrived:,} queries; {result.again:,} times one was dispatched again; 7 nodes are lost, 10 join late"
    report.claims.append(Claim("sim_failed_on_node_loss", "== 0", arrived - answered, note=note))


def timeline(result: NodesResult, seconds: int) -> dict[str, Any]:
    """Return latencies in ms by the second of arrival, and nodes and instances by runtime at the end of each second."""
    order = np.argsort(result.arrivals_s, kind="stable")
    edges = np.searchsorted(result.arrivals_s[order], np.arange(seconds + 1))
    latencies = np.split(result.latencies_s[order] * 1e3, edges[1:-1])
    samples = result.samples[:seconds]
    return {
        "p50_ms": [round(float(np.median(each)), 2) for each in latencies],
        "p98_ms": [round(float(np.percentile(each, 98)), 2) for each in latencies],
        "nodes": [sample.nodes for sample in samples],
        "instances": [list(sample.instances) for sample in samples],
    }


def _around(result: NodesResult, at: float | None, slo_s: float) -> list[str]:
    arrivals, latencies = result.arrivals_s, result.latencies_s
    if at is not None:
        latencies = latencies[(arrivals >= at - 1) & (arrivals < at + 5)]
    p98 = float(np.percentile(latencies, 98))
    shown = [f"{value * 1e3:.1f}" for value in (float(latencies.mean()), p98, float(latencies.max()))]
    return [f"{len(latencies):,}", *shown, f"{float((latencies > slo_s).mean()):.3%}"]


def _entrances(report: Report, data: ClusterData, size: Size) -> None:
    """Compare numbers of entrances, and what they know of each other."""
    report.measured["entrances"] = {}
    for cluster in _CLUSTERS:
        found: dict[str, Any] = {}
        worst, ratio, given_back = 0.0, 0.0, []
        for load in cluster.loads:
            cells: dict[str, list[NodesResult]] = {}
            for seed in range(size.rounds):
                progress(f"{cluster.name}, load {load:.0%}, round {seed + 1} of {size.rounds}")
                for name, result in _round(data, cluster, load, size.round_s, seed).items():
                    cells.setdefault(name, []).append(result)
            ratios = {name: _ratios(results, cells["1"]) for name, results in cells.items()}
            rows = [_row(name, results, ratios[name]) for name, results in cells.items()]
            columns = ["entrances", "mean ms", "p98 ms", "mean / one entrance (rounds)", "remote", "longest"]
            report.add_table(f"{cluster.name}, load {load:.0%}, medians", columns, rows)
            worst = max(worst, statistics.median(ratios[f"{_ENTRANCES}, {SERVED}"]))
            held, without = (cells[f"{_ENTRANCES}, {way}"] for way in (SERVED, GIVEN_BACK))
            ratio = max(ratio, statistics.median(_ratios(without, held)))
            given_back += [_longest(one) - _longest(other) for one, other in zip(held, without, strict=True)]
            found[str(load)] = {
                name: [
                    {"mean_ms": each.mean_ms, "p98_ms": each.percentile_ms(98), "longest": _longest(each)}
                    for each in results
                ]
                for name, results in cells.items()
            }
        report.measured["entrances"][cluster.name] = found
        note = f"the worst of the loads {', '.join(f'{load:.0%}' for load in cluster.loads)}; {SERVED}"
        claim = f"sim_multi_entrance_penalty[{_ENTRANCES} of {cluster.nodes} nodes]"
        report.claims.append(Claim(claim, "<= 1.10", worst, note=note))
        if cluster.nodes > _ENTRANCES:
            note = f"the worst of these loads; {min(given_back)} to {max(given_back)} devices hold shorter runtimes"
            claim = f"sim_mean_without_other_entrances[{_ENTRANCES} of {cluster.nodes} nodes]"
            report.claims.append(Claim(claim, "<= 1.00", ratio, note=note))


def _longest(result: NodesResult) -> int:
    """Return the instances of the longest runtime when the queries end."""
    return result.samples[-1].instances[-1]


def _ratios(results: Sequence[NodesResult], ones: Sequence[NodesResult]) -> list[float]:
    return [each.mean_ms / one.mean_ms for each, one in zip(results, ones, strict=True)]


def _row(name: str, results: Sequence[NodesResult], ratios: Sequence[float]) -> list[str]:
    return [
        name,
        f"{statistics.median(result.mean_ms for result in results):.1f}",
        f"{statistics.median(result.percentile_ms(98) for result in results):.1f}",
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        f"{statistics.median(result.remote for result in results):.0%}",
        f"{statistics.median(map(_longest, results)):g}",
    ]


def _round(data: ClusterData, cluster: Cluster, load: float, seconds: int, seed: int) -> Mapping[str, NodesResult]:
    history = _history(data, 100 + seed)
    requests = data.workload(_rate(history, cluster, load), seconds, drift=False, seed=seed)
    one, stream = SimulatedNodes((cluster.devices,) * cluster.nodes), cluster.stream

    def run(nodes: SimulatedNodes) -> NodesResult:
        return simulate_nodes(requests, stream.times, nodes, slo_s=stream.slo_s, history=history)

    found = {"1": run(one)}
    for number in cluster.entrances:
        for name, settings in WAYS.items():
            found[f"{number}, {name}"] = run(replace(one, entrances=number, **settings))
    return found


def _history(data: ClusterData, seed: int) -> LengthHistory:
    """Return past queries from another seed than those that are simulated."""
    past: SyntheticRequests = data.workload(1000, 20, drift=False, seed=1000 + seed)
    return length_history(past)


def _rate(history: LengthHistory, cluster: Cluster, load: float) -> float:
    """Return the queries per second at which the devices are busy for this share of the time, without demotions."""
    lengths: Sequence[int] = list(history.by_length)
    times = cluster.stream.times
    shortest = np.asarray(times.static_s)[np.searchsorted(times.max_lengths, lengths)]
    devices = cluster.nodes * cluster.devices
    return load * devices / float(np.average(shortest, weights=list(history.by_length.values())))


if __name__ == "__main__":
    typer.run(main)
