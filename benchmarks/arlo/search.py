"""The baselines' parameters, searched on lengths and arrivals that are not measured later."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.arlo.measure import ArloCell, capacity, measure, warm_up
from benchmarks.arlo.systems import BASELINES, DT, DT_BATCHED, ST, candidates
from benchmarks.arlo.workload import ArloWorkload
from benchmarks.report import progress
from benchmarks.serving_path.throughput import BareConfig
from tidal.server.child import RunningServer

# How many of the fastest candidates are tried at each load.
_TRIED = 3
_SEED = 20


@dataclass(slots=True)
class TunedBaselines:
    """The best candidate of each baseline for each load, and that with the highest capacity.

    `models[system][percent]` and `fastest[system]` are models' names, `rows` what was measured for a table.
    """

    models: dict[str, dict[str, str]] = field(default_factory=dict)
    fastest: dict[str, str] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)

    def names(self) -> set[str]:
        """All models that were chosen."""
        return {*self.fastest.values(), *(name for each in self.models.values() for name in each.values())}


def search(server: RunningServer, workload: ArloWorkload, *, quick: bool) -> TunedBaselines:
    """Try every candidate's capacity, and the best of them at every load; the chosen ones stay loaded."""
    tuned = TunedBaselines()
    rates: dict[str, float] = {}
    for system in BASELINES:
        found = candidates(system, quick=quick)
        speeds: dict[BareConfig, float] = {}
        for candidate in found:
            progress(f"searching {system}: {candidate.model}")
            server.control.load(candidate.model, None)
            if not quick:
                warm_up(server, candidate.model, workload, seconds=2)
            speeds[candidate] = capacity(server, candidate.model, workload, seconds=1.5 if quick else 3, seed=_SEED)
        ranked = sorted(found, key=speeds.__getitem__, reverse=True)
        # Batching is measured at the loads of DT: it is the same engine, first come first served too.
        rates[system] = rates[DT] if system == DT_BATCHED else speeds[ranked[0]]
        tuned.fastest[system] = ranked[0].model
        tuned.models[system] = {}
        columns: dict[BareConfig, list[str]] = {candidate: [] for candidate in found}
        for percent in (40, 70) if system == ST else (40, 70, 90):
            means = _at_load(server, workload, ranked[:_TRIED], rates[system] * percent / 100, quick, system == ST)
            best = min(means, key=lambda candidate: means[candidate].mean_ms)
            tuned.models[system][str(percent)] = best.model
            for candidate in found:
                shown = f"{means[candidate].mean_ms:.0f}" if candidate in means else "-"
                columns[candidate].append(shown + (" *" if candidate is best else ""))
        for candidate in found:
            cells = [f"{speeds[candidate]:.1f}", *columns[candidate]]
            tuned.rows.append([system, candidate.model, *cells, *[""] * (4 - len(cells))])
            if candidate.model not in tuned.names():
                server.control.unload(candidate.model)
    return tuned


def _at_load(
    server: RunningServer, workload: ArloWorkload, tried: list[BareConfig], rate: float, quick: bool, slow: bool
) -> dict[BareConfig, ArloCell]:
    """Every candidate on the same arrivals."""
    requests = (15 if slow else 60) if quick else (120 if slow else 500)
    trace = workload.trace("poisson", rate, requests, _SEED + 1)
    return {candidate: measure(server, candidate.model, trace, workload) for candidate in tried}
