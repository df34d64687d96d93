"""Parameter search of the baselines, on other lengths and arrivals than those measured later."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.arlo.measure import ArloCell, capacity, measure, warm_up
from benchmarks.arlo.systems import BASELINES, DT, DT_BATCHED, ST, candidates
from benchmarks.arlo.workload import ArloWorkload
from benchmarks.report import progress
from benchmarks.serving_path.throughput import BareConfig
from tidal.server.child import RunningServer

# Number of the fastest candidates that are tried at each load.
_TRIED = 3
_SEED = 20


@dataclass(slots=True)
class TunedBaselines:
    """Chosen candidates of the baselines.

    Attributes:
        models: Name of the best model by system and load in percent.
        fastest: Name of the model with the highest capacity, by system.
        rows: Rows of the table of the search.
    """

    models: dict[str, dict[str, str]] = field(default_factory=dict)
    fastest: dict[str, str] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)

    def names(self) -> set[str]:
        """Return the names of all chosen models."""
        return {*self.fastest.values(), *(name for each in self.models.values() for name in each.values())}


def search(server: RunningServer, workload: ArloWorkload, *, quick: bool) -> TunedBaselines:
    """Measure the capacity of all candidates, and the latency of the fastest at each load; leave the chosen loaded."""
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
        # "DT batched" is measured at the loads of DT, which has the same engine and is first come first served, too.
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
    """Measure every candidate on the same arrivals."""
    requests = (15 if slow else 60) if quick else (120 if slow else 500)
    trace = workload.trace("poisson", rate, requests, _SEED + 1)
    return {candidate: measure(server, candidate.model, trace, workload) for candidate in tried}
