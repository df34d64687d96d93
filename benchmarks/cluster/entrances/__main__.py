"""`python -m benchmarks.cluster.entrances [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cluster.entrances.plot import ONE, TIDAL, WAYS, plot
from benchmarks.cluster.simulated.inputs import BASE, ClusterData, Stream
from benchmarks.report import Claim, Report, progress
from tidal.simulator.arlo.entrances import Entrances, EntrancesResult, Knowledge, simulate_entrances
from tidal.simulator.arlo.systems import SystemName, make_system
from tidal.simulator.arlo.workload import length_history

NODES, GPUS = 4, 40
LOADS = (0.4, 0.7, 0.9)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with twitter_2021_rate and tweet_lengths.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Simulate a cluster with 1, 2 and 4 entrances that know more or less of each other's requests."""
    report, inputs = Report("entrances", quick), ClusterData(data)
    seconds, rounds, numbers = (4, 3, (2, 4)) if quick else (10, 5, (2, 4))
    print(inputs.description)
    found: dict[str, Any] = {}
    worst = 0.0
    for load in LOADS:
        cells: dict[str, list[EntrancesResult]] = {}
        for seed in range(rounds):
            progress(f"load {load:.0%}, round {seed + 1} of {rounds}")
            for name, result in _round(BASE, inputs, load, seconds, seed, numbers).items():
                cells.setdefault(name, []).append(result)
        rows = [_row(name, results, cells[ONE]) for name, results in cells.items()]
        columns = ["dispatch", "mean ms", "p98 ms", "mean / one entrance", "(rounds)", "p98 / one entrance", "remote"]
        report.add_table(f"{GPUS} GPUs on {NODES} nodes, load {load:.0%}, medians", columns, rows)
        found[str(load)] = {
            name: [{"mean_ms": _mean(each), "p98_ms": _p98(each), "remote": each.remote} for each in results]
            for name, results in cells.items()
        }
        worst = max(worst, statistics.median(_ratios(cells[f"4: {TIDAL}"], cells[ONE], _mean)))
    report.measured["loads"] = found
    note = f"the worst of the loads {', '.join(f'{load:.0%}' for load in LOADS)}; simulated; a hop takes 0.5 ms"
    report.claims.append(Claim("sim_multi_entrance_penalty[4]", "<= 1.10", worst, note=note))
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def _round(
    stream: Stream, data: ClusterData, load: float, seconds: int, seed: int, numbers: Sequence[int]
) -> dict[str, EntrancesResult]:
    history = length_history(data.workload(1000, 20, drift=False, seed=100 + seed))
    system = make_system(SystemName.ARLO, stream.times, gpus=GPUS, slo_s=stream.slo_s, history=history)
    assert system.instances is not None
    lengths = np.array(list(history.by_length))
    shortest = np.asarray(stream.times.static_s)[np.searchsorted(stream.times.max_lengths, lengths)]
    mean_s = float(np.average(shortest, weights=list(history.by_length.values())))
    requests = data.workload(load * GPUS / mean_s, seconds, drift=False, seed=seed)

    def run(entrances: Entrances) -> EntrancesResult:
        assert system.instances is not None
        return simulate_entrances(requests, stream.times, system.instances, stream.slo_s, entrances)

    found = {ONE: run(Entrances(1, NODES, Knowledge.EXACT))}
    for number in numbers:
        for name, (knowledge, margin) in WAYS.items():
            found[f"{number}: {name}"] = run(Entrances(number, NODES, knowledge, margin))
    return found


def _mean(result: EntrancesResult) -> float:
    return float(result.latencies_s.mean()) * 1e3


def _p98(result: EntrancesResult) -> float:
    return float(np.percentile(result.latencies_s, 98)) * 1e3


def _ratios(results: Sequence[EntrancesResult], ones: Sequence[EntrancesResult], of: Any) -> list[float]:
    return [of(each) / of(one) for each, one in zip(results, ones, strict=True)]


def _row(name: str, results: Sequence[EntrancesResult], ones: Sequence[EntrancesResult]) -> list[str]:
    means = _ratios(results, ones, _mean)
    return [
        name,
        f"{statistics.median(map(_mean, results)):.2f}",
        f"{statistics.median(map(_p98, results)):.2f}",
        f"{statistics.median(means):.3f}",
        f"{min(means):.3f} to {max(means):.3f}",
        f"{statistics.median(_ratios(results, ones, _p98)):.3f}",
        f"{statistics.median(each.remote for each in results):.0%}",
    ]


if __name__ == "__main__":
    typer.run(main)
