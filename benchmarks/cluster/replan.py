"""`python -m benchmarks.cluster.replan [--quick] [--json FILE]`: time of decisions about 100 nodes, without servers."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.cluster.plot import plot_replan
from benchmarks.cluster.simulated.inputs import BASE
from benchmarks.report import Claim, Report, machine_line, progress
from tidal.arlo.scheduling import ClusterPlan, even_allocation
from tidal.controller.counts import ModelCounts
from tidal.controller.decisions import PlanSettings, decide
from tidal.controller.observed import ObservedModel
from tidal.controller.reports import ModelProfile, ModelReport, NodeReport, node_tables

MODEL = "encoder"
NODES = 100
#: What the controller decides about, in the order in which it happens in a round.
CASES = ("first plan", "a node joins", "a node is lost", "longer inputs")
_PROFILE = ModelProfile(BASE.times.max_lengths, BASE.times.static_s, BASE.slo_s)
_RUNTIMES = len(_PROFILE.lengths)
# Engine time of all queries over that of all devices.
_LOAD = 0.7
# Parameters of the log-normal lengths: those of tweets whose longest has 512 tokens have a median of 98.
_MEDIAN, _LONGER_MEDIAN, _DEVIATION = 98.0, 160.0, 0.6


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the controller.

    Attributes:
        case: Change since the last decision.
        nodes: Number of nodes.
        devices: Number of their devices.
        moves: Instances that end plus instances that start.
        plan_s: Time of demand, counts and placement (`plan_cluster`), in seconds.
        changes_s: Time to divide the plan into changes, in seconds.
        tables_s: Time to make the tables of other nodes for all fronts, in seconds.
    """

    case: str
    nodes: int
    devices: int
    moves: int
    plan_s: float
    changes_s: float
    tables_s: float

    @property
    def seconds(self) -> float:
        """Time of the whole decision in seconds."""
        return self.plan_s + self.changes_s + self.tables_s


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Time the decisions of a cluster's controller with simulated agents."""
    report = Report("replan", quick)
    print(machine_line())
    measure(report, quick)
    report.finish(json)
    if json is not None:
        plot_replan(report.document(), json.with_suffix(".png"))


def measure(report: Report, quick: bool) -> None:
    """Add the table, the claim and all decisions to a report."""
    rounds = 5 if quick else 20
    decide_all(NODES, seed=0)  # imports, and what numpy prepares once
    decisions: list[Decision] = []
    for number in range(rounds):
        progress(f"decisions about {NODES} nodes, round {number + 1} of {rounds}")
        decisions += decide_all(NODES, seed=number + 1)
    rows, worst = [], 0.0
    for case in CASES:
        of_case = [each for each in decisions if each.case == case]
        parts = [[getattr(each, name) for each in of_case] for name in ("plan_s", "changes_s", "tables_s", "seconds")]
        moves = f"{statistics.median(each.moves for each in of_case):.0f}"
        rows.append([case, str(of_case[0].nodes), moves, *map(_spread, parts)])
        worst = max(worst, statistics.median(parts[-1]))
    columns = ["case", "nodes", "moves", "plan ms", "changes ms", "tables ms", "in total ms"]
    report.add_table(f"a decision about up to {NODES} nodes, medians of {rounds} rounds (range)", columns, rows)
    report.measured["replan"] = [asdict(each) | {"seconds": each.seconds} for each in decisions]
    slowest = max(each.seconds for each in decisions)
    note = f"the slowest case, median of {rounds} rounds; slowest decision {slowest:.3f} s; simulated agents"
    report.claims.append(Claim("replan_100_nodes_s", "<= 1", worst, note=note))


def decide_all(number: int, seed: int) -> list[Decision]:
    """Decide about a cluster as its nodes and its queries change; each plan is carried out before the next.

    Args:
        number: Number of nodes, at least 2.
        seed: Seed of devices, arrivals and engine times.
    """
    rng = np.random.default_rng(seed)
    devices = {f"node{at:03}": int(rng.integers(8, 11)) for at in range(number)}
    names = list(devices)
    joins, leaves = names[-1], names[int(rng.integers(number - 1))]
    instances = {name: even_allocation(devices[name], _RUNTIMES) for name in names if name != joins}
    decisions = []
    for case in CASES:
        if case == "a node joins":
            instances[joins] = even_allocation(devices[joins], _RUNTIMES)
        elif case == "a node is lost":
            del instances[leaves]
        median = _LONGER_MEDIAN if case == "longer inputs" else _MEDIAN
        plan, decision = _decide(case, instances, devices, median, rng)
        instances = {node.name: row for node, row in zip(plan.nodes, plan.after, strict=True)}
        decisions.append(decision)
    return decisions


def _decide(
    case: str,
    instances: Mapping[str, tuple[int, ...]],
    devices: Mapping[str, int],
    median: float,
    rng: np.random.Generator,
) -> tuple[ClusterPlan, Decision]:
    settings = PlanSettings()
    observed = ObservedModel(_PROFILE, 0.0)
    total = sum(devices[name] for name in instances)
    reports: dict[str, NodeReport] = {}
    for name, counts in instances.items():
        reference = _report(name, counts, devices[name], ModelCounts.none(_RUNTIMES))
        traffic = _traffic(total / len(instances), counts, settings.period_s, median, rng)
        reports[name] = _report(name, counts, devices[name], traffic)
        for reading in (reference, reports[name]):
            observed.observe(reading, reading.models[0])
    gc.collect()
    began = time.perf_counter()
    observed.passed(settings.period_s, answered=True)
    plan = decide(observed, reports, MODEL, settings)
    planned = time.perf_counter()
    for _ in plan.stages():
        pass
    changed = time.perf_counter()
    node_tables(reports)
    ended = time.perf_counter()
    times = planned - began, changed - planned, ended - changed
    return plan, Decision(case, len(instances), total, plan.moves, *times)


def _report(name: str, instances: tuple[int, ...], devices: int, counts: ModelCounts) -> NodeReport:
    model = ModelReport(MODEL, 1, _PROFILE, devices, instances, instances, False, counts)
    return NodeReport(name, "serves", grpc=f"{name}:8001", identity=(1, 1), gpus=devices, models=(model,))


def _traffic(
    devices: float, instances: tuple[int, ...], seconds: float, median: float, rng: np.random.Generator
) -> ModelCounts:
    """Return what an agent reports after a period: queries by length, and engine time that differs by instance."""
    lengths = np.clip(rng.lognormal(np.log(median), _DEVIATION, 2_000), 1, _PROFILE.lengths[-1])
    runtimes = np.searchsorted(_PROFILE.lengths, lengths)
    shares = np.bincount(runtimes, minlength=_RUNTIMES) / len(lengths)
    rate = _LOAD * devices / float(shares @ np.asarray(_PROFILE.latencies_s))
    queries = rng.poisson(shares * rate * seconds).astype(float)
    busy_s = np.asarray(instances) * seconds * rng.uniform(0.5, 0.9, _RUNTIMES)
    return ModelCounts(seconds, tuple(queries.tolist()), tuple(busy_s.tolist()), requests=int(queries.sum()))


def _spread(seconds: list[float]) -> str:
    low, middle, high = (1e3 * each for each in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    typer.run(main)
