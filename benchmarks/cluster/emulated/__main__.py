"""`python -m benchmarks.cluster.emulated [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cluster.emulated import entrances
from benchmarks.cluster.emulated.devices import EmulatedModel, prepare, write_bin_packing, write_model
from benchmarks.cluster.emulated.plot import plot
from benchmarks.cluster.emulated.runs import (
    EmulatedRun,
    history_of,
    lone_overhead_ms,
    requests_of,
    run,
    simulated,
    warm,
)
from benchmarks.cluster.emulated.systems import ARLO, EARLIEST, SYSTEMS, ComparedSystem
from benchmarks.cluster.simulated.figures import FIGURE_6, FIGURE_7, MEAN_VS, P98_VS, Setting
from benchmarks.cluster.simulated.inputs import BASE, INFAAS_FILL, ClusterData
from benchmarks.report import Claim, Report, machine_line, progress
from tidal.server.child import RunningServer, tidal_serve
from tidal.simulator.arlo import LengthHistory, SystemName
from tidal.simulator.requests import Floats

#: All times are this many times the paper's, so that what servers and clients cost on few cores is small beside them.
STRETCH = 10.0
_BINS = "infaas"
_GOALS = {SystemName.DT: "<= 0.80", SystemName.INFAAS: "<= 0.75", SystemName.ST: "<= 0.35"}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a run.

    Attributes:
        settings: Experiments that are repeated in rounds.
        rates: Experiments of one round each, at other rates.
        seconds: Duration of a round in seconds of the paper's time.
        rate_seconds: Duration of a round of `rates`, likewise.
        rounds: Number of rounds.
        lone: Number of lone queries.
    """

    settings: tuple[Setting, ...]
    rates: tuple[Setting, ...]
    seconds: int
    rate_seconds: int
    rounds: int
    lone: int


FULL = Size(FIGURE_6, FIGURE_7[::2], seconds=3, rate_seconds=2, rounds=3, lone=300)
QUICK = Size(FIGURE_6[:1], (), seconds=1, rate_seconds=1, rounds=1, lone=50)


@dataclass(frozen=True, slots=True)
class Compared:
    """A round of a system: measured, and simulated with the same arrivals."""

    measured: EmulatedRun
    simulated_ms: Floats

    def errors(self) -> tuple[float, float]:
        """Return the relative errors of the simulated mean and 98th percentile."""
        mean, p98 = float(self.simulated_ms.mean()), float(np.percentile(self.simulated_ms, 98))
        return abs(mean / self.measured.mean_ms - 1), abs(p98 / self.measured.p98_ms - 1)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One setting, round and entrance; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with twitter_2021_rate and tweet_lengths.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Run ST, DT, INFaaS and Arlo on real servers whose ten devices wait as long as the paper's GPUs compute.

    Fronts, schedulers, gRPC and tritonserver are real, the devices only wait (they are no engines). All times are
    stretched, and reported in the paper's time.
    """
    report, inputs, size = Report("emulated", quick), ClusterData(data), QUICK if quick else FULL
    source = prepare()
    print(f"{machine_line()}\n{inputs.description}; all times {STRETCH:g} times the paper's; the devices only wait")
    report.measured |= {"data": inputs.description, "stretch": STRETCH}
    errors: list[tuple[float, float]] = []
    streams = {setting.stream.name for setting in (*size.settings, *size.rates)}
    for stream in sorted(streams):
        settings = [each for each in size.settings if each.stream.name == stream]
        rates = [each for each in size.rates if each.stream.name == stream]
        errors += _measure(report, source, inputs, size, settings, rates)
    _fidelity(report, errors)
    if not quick:  # four servers take more than a minute to start
        entrances.measure(report, source, inputs, BASE, 2 * STRETCH)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def _measure(
    report: Report, source: Path, data: ClusterData, size: Size, settings: Sequence[Setting], rates: Sequence[Setting]
) -> list[tuple[float, float]]:
    """Measure all systems of one stream on one server; returns the errors of Arlo's simulations."""
    first = [*settings, *rates][0]
    history = history_of(data, first)
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder:
        models = _write(source, Path(folder), first, history)
        progress(f"{first.stream.name}: starting a server with {len(models)} systems of {first.gpus} devices")
        with tidal_serve(Path(folder), "--exit-timeout", "3") as server:
            for name in models:
                warm(server.grpc, models[name])
            times = [STRETCH * seconds for seconds in first.stream.times.static_s]
            overhead_ms = lone_overhead_ms(server.grpc, models[ARLO.name], times, queries=size.lone) / STRETCH
            report.measured.setdefault("overhead_ms", {})[first.stream.name] = overhead_ms
            found: list[tuple[float, float]] = []
            for setting in settings:
                rounds = [
                    _round(server, models, data, setting, history, size.seconds, seed, overhead_ms)
                    for seed in range(size.rounds)
                ]
                _add(report, setting, rounds)
                found += [each[ARLO.name].errors() for each in rounds]
            if rates:
                curves = [
                    _round(server, models, data, each, history, size.rate_seconds, 7, overhead_ms) for each in rates
                ]
                _add_rates(report, rates, curves)
                found += [each[ARLO.name].errors() for each in curves]
    return found


def _write(source: Path, repository: Path, setting: Setting, history: LengthHistory) -> dict[str, str]:
    """Write all systems, and return the names of their models."""
    names: dict[str, str] = {}
    for system in SYSTEMS:
        instances, dynamic = system.instances(setting, history), system.inflation is not None
        dispatch = "completion" if system is EARLIEST else "congestion"
        name = f"{system.kind.value}_{len(names)}"
        front = EmulatedModel(name, system.stream(setting), STRETCH, instances, dynamic, dispatch)
        write_model(source, repository, front)
        names[system.name] = front.name
        if system.kind is SystemName.INFAAS:
            write_bin_packing(repository, front, _BINS, INFAAS_FILL)
            names[system.name] = _BINS
    return names


def _round(
    server: RunningServer,
    models: Mapping[str, str],
    data: ClusterData,
    setting: Setting,
    history: LengthHistory,
    seconds: int,
    seed: int,
    overhead_ms: float,
) -> dict[str, Compared]:
    requests = requests_of(data, setting, seconds, seed)
    found = {}
    for system in SYSTEMS if seed % 2 == 0 else reversed(SYSTEMS):
        progress(f"{setting.title}, round {seed + 1}: {system.title}, {len(requests.times)} queries")
        measured = run([server.grpc], models[system.name], requests, STRETCH)
        found[system.name] = Compared(measured, simulated(system, setting, history, requests, overhead_ms / 1e3))
    return found


def _add(report: Report, setting: Setting, rounds: Sequence[Mapping[str, Compared]]) -> None:
    """Add the table and the claims of a setting."""
    rows = []
    figure = setting.title.partition(":")[0].lower()
    for system in SYSTEMS:
        runs = [each[system.name] for each in rounds]
        change = MEAN_VS[setting.title].get(system.kind.value)
        paper = "-" if change is None else f"{1 + change:.3f}"
        of_arlo, of_earliest = (_ratios(rounds, system.name, ours.name) for ours in (ARLO, EARLIEST))
        rows.append(
            [
                system.title,
                f"{statistics.median(each.measured.mean_ms for each in runs):.2f}",
                f"{statistics.median(float(each.simulated_ms.mean()) for each in runs):.2f}",
                f"{statistics.median(each.measured.p98_ms for each in runs):.2f}",
                f"{statistics.median(float(np.percentile(each.simulated_ms, 98)) for each in runs):.2f}",
                *("-" if system is ARLO else _spread(each) for each in (of_arlo[0], of_earliest[0])),
                paper,
                *("-" if system is ARLO else _spread(each) for each in (of_arlo[1], of_earliest[1])),
                str(sum(each.measured.failed for each in runs)),
                f"{statistics.median(each.measured.cpu for each in runs):.0%}",
            ]
        )
        if system not in (ARLO, EARLIEST):
            case = figure if system.inflation is None else f"{figure}, inflation {system.inflation:g}"
            report.claims += _claims(system, setting, case, of_arlo)
            report.claims += _claims(system, setting, f"{case}, completion", of_earliest)
    columns = [
        "system",
        "mean ms",
        "simulated",
        "p98 ms",
        "simulated",
        "Arlo's mean / its",
        "earliest's",
        "paper",
        "Arlo's p98 / its",
        "earliest's",
    ]
    report.add_table(f"{setting.title}; emulated devices", [*columns, "failed", "cores used"], rows)
    report.measured.setdefault("settings", {})[setting.title] = {
        system.name: [_kept(each[system.name]) for each in rounds] for system in SYSTEMS
    }


def _claims(
    system: ComparedSystem, setting: Setting, case: str, ratios: tuple[Sequence[float], Sequence[float]]
) -> list[Claim]:
    """Return the claims about one of Tidal's rules against another system, from the ratios of means and of p98."""
    means, tails = ratios
    paper = f"{1 + MEAN_VS[setting.title][system.kind.value]:.3f}"
    note = f"medians of {len(means)} rounds, {_spread(means)}; {setting.title.partition(': ')[2]}"
    name = f"emulated_mean_vs_{system.kind.value}[{case}]"
    claims = [Claim(name, _GOALS[system.kind], statistics.median(means), paper, note)]
    if system.kind is SystemName.DT:
        note = f"the paper's largest over both streams; {_spread(tails)}"
        paper = f"{1 + P98_VS['Figure 6']['dt']:.3f}"
        claims.append(Claim(f"emulated_p98_vs_dt[{case}]", "<= 0.90", statistics.median(tails), paper, note))
    return claims


def _add_rates(report: Report, settings: Sequence[Setting], curves: Sequence[Mapping[str, Compared]]) -> None:
    rows = [
        [
            f"{setting.rate:g}",
            *(f"{each[s.name].measured.mean_ms:.2f} ({each[s.name].simulated_ms.mean():.2f})" for s in SYSTEMS),
        ]
        for setting, each in zip(settings, curves, strict=True)
    ]
    report.add_table(
        "Figure 7: Bert-Base, 10 devices; mean ms (simulated)",
        ["queries/s", *(system.title for system in SYSTEMS)],
        rows,
    )
    report.measured["rates"] = {
        f"{setting.rate:g}": {system.name: _kept(each[system.name]) for system in SYSTEMS}
        for setting, each in zip(settings, curves, strict=True)
    }


def _fidelity(report: Report, errors: Sequence[tuple[float, float]]) -> None:
    """Add the claims of the simulator against the servers, for Arlo."""
    for at, (name, goal, paper) in enumerate((("mean", "<= 0.043", "4.3%"), ("p98", "<= 0.026", "2.6%"))):
        values = [each[at] for each in errors]
        note = f"median of {len(values)} runs of Arlo, {_spread(values)}; same arrivals, overhead of lone queries"
        report.claims.append(Claim(f"fidelity_{name}_error", goal, statistics.median(values), paper, note))


def _ratios(rounds: Sequence[Mapping[str, Compared]], name: str, ours: str) -> tuple[list[float], list[float]]:
    """Return the mean and 98th percentile of one system over those of another one, by round."""
    pairs = [(each[ours].measured, each[name].measured) for each in rounds]
    return [a.mean_ms / b.mean_ms for a, b in pairs], [a.p98_ms / b.p98_ms for a, b in pairs]


def _kept(each: Compared) -> dict[str, Any]:
    return {
        "mean_ms": each.measured.mean_ms,
        "p98_ms": each.measured.p98_ms,
        "queries": len(each.measured.latencies_ms),
        "failed": each.measured.failed,
        "cpu": each.measured.cpu,
        "simulated_mean_ms": float(each.simulated_ms.mean()),
        "simulated_p98_ms": float(np.percentile(each.simulated_ms, 98)),
    }


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    typer.run(main)
