"""`python -m benchmarks.cluster.serve_routers [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cluster.emulated.devices import EmulatedModel, prepare, write_front, write_latencies
from benchmarks.cluster.emulated.nodes import plan_nodes, serving_nodes, write_tables
from benchmarks.cluster.serve_routers import dispatchers, dispatchers_model
from benchmarks.cluster.serve_routers.loads import Loads
from benchmarks.cluster.serve_routers.outcome import HAPROXY, LEAST_OUTSTANDING, RAY, ROUND_ROBIN, TIDAL, add_case
from benchmarks.cluster.serve_routers.plot import plot
from benchmarks.cluster.serve_routers.ray_serve import BALANCED, ROUTED, Mode, RayNodes, chosen, ray_nodes
from benchmarks.cluster.serve_routers.rounds import Case, Compared, Measuring, Plan, measure_rounds
from benchmarks.cluster.serve_routers.search import Tried, best, compared, report_search, try_forms
from benchmarks.cluster.serve_routers.systems import TidalFront
from benchmarks.cluster.simulated.figures import Setting
from benchmarks.cluster.simulated.inputs import BASE, MAX_LENGTHS, ClusterData
from benchmarks.encoders.processes import NotStarted
from benchmarks.environments import SERVERS, why_not
from benchmarks.report import Report, machine_line, progress
from tidal.server.child import RunningServer
from tidal.simulator.arlo import SystemName

MODEL = "routed"
NODES = {"a": 3, "b": 3, "c": 3}
CASES = (
    Case("times of the profile", 1.0),
    Case("a tenth of them", 0.1, without=(ROUND_ROBIN, LEAST_OUTSTANDING)),
)
_DISPATCHERS: Mapping[str, dispatchers.Dispatcher] = {
    ROUND_ROBIN: "round_robin",
    LEAST_OUTSTANDING: "least_outstanding",
}
# Queries per second that the instances of the nodes are planned for.
_PLANNED_RATE = 2000
# Queries in flight, and what share of the slowest system's answers per second is a moderate rate.
_IN_FLIGHT, _MODERATE = 48, 0.4


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a run.

    Attributes:
        rounds: Number of rounds.
        search_s: Length of a closed loop of the search, in seconds.
        closed_s: Length of a closed loop of the rounds, in seconds.
        open_s: Length of an open loop, in seconds.
    """

    rounds: int
    search_s: float
    closed_s: float
    open_s: float


FULL = Size(rounds=3, search_s=2.0, closed_s=2.0, open_s=3.0)
QUICK = Size(rounds=1, search_s=2.0, closed_s=2.0, open_s=4.0)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One round, few settings of Ray; under 3 minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with twitter_2021_rate and tweet_lengths.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Compare three nodes of Tidal with three of Ray Serve, and Tidal's dispatcher with others on the same instances.

    All run on this machine, around the same devices, which only wait (they are no engines): as long as the paper's
    GPUs compute, and a tenth of that. A device of Tidal has one length; a replica of Ray Serve takes the time of the
    shortest runtime that fits.
    """
    if reason := why_not(SERVERS):
        raise SystemExit(f"Ray Serve cannot be compared: {reason}")
    report, inputs, size = Report("serve_routers", quick), ClusterData(data), QUICK if quick else FULL
    source = prepare()
    print(f"{machine_line()}\n{inputs.description}; the devices only wait, their times are not stretched")
    setting = Setting("routers", BASE, sum(NODES.values()), _PLANNED_RATE, (SystemName.ARLO,), False, (1, 1))
    instances = plan_nodes(inputs, setting, NODES)
    report.measured |= {"data": inputs.description, "instances": instances}
    with (
        serving_nodes(source, EmulatedModel(MODEL, BASE, 1.0, ()), instances, _add_dispatchers) as servers,
        _ray_serve(quick) as rays,
    ):
        write_tables(servers, MODEL, instances, len(NODES))
        _compare(report, size, Loads(inputs), servers, rays)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def _compare(
    report: Report,
    size: Size,
    loads: Loads,
    servers: Mapping[str, RunningServer],
    rays: Sequence[tuple[Mode, RayNodes]],
) -> None:
    """Search the settings of Ray Serve, and measure the rounds."""
    measuring = Measuring(loads, [nodes.pid for _, nodes in rays])
    tried: dict[str, list[Tried]] = {}
    for mode, nodes in rays:
        name = HAPROXY if mode.name == BALANCED.name else RAY
        tried.setdefault(name, []).extend(
            try_forms(measuring, mode, nodes, in_flight=_IN_FLIGHT, seconds=size.search_s)
        )
    picked = {name: best(found) for name, found in tried.items()}
    report_search(report, [each for found in tried.values() for each in found], list(picked.values()), _IN_FLIGHT)
    rate = _MODERATE * min(fastest.closed.per_second for fastest, _ in picked.values())
    plan = Plan(size.rounds, _IN_FLIGHT, size.closed_s, rate, size.open_s)
    report.measured["plan"] = asdict(plan)
    systems = {}
    for name, front in {TIDAL: MODEL, **_DISPATCHERS}.items():
        served = TidalFront(front, list(servers.values()), MODEL)
        systems[name] = Compared(served, served)
    systems |= {name: compared(pair) for name, pair in picked.items()}

    def stretch_to(stretch: float) -> None:
        model = EmulatedModel(MODEL, BASE, stretch, ())
        for server in servers.values():
            write_latencies(server.state.repository, model)
        for _, nodes in rays:
            nodes.set_seconds(_by_length(stretch))

    for case, rounds in measure_rounds(measuring, systems, CASES, plan, stretch_to).items():
        add_case(report, case, rounds, plan)


@contextmanager
def _ray_serve(quick: bool) -> Iterator[list[tuple[Mode, RayNodes]]]:
    """Run Ray Serve in each mode until the block ends."""
    modes = (*(ROUTED[:1] if quick else ROUTED), BALANCED)
    with ExitStack() as stack:
        found = []
        for mode in modes:
            progress(f"starting three nodes of Ray Serve, {mode.name}")
            try:
                nodes = stack.enter_context(ray_nodes(mode, list(NODES.values()), _by_length(1.0)))
            except NotStarted as error:
                progress(f"{mode.name} is left out: {error}")
                continue
            found.append((chosen(mode, quick), nodes))
        if not found:
            raise SystemExit("Ray Serve did not start in any mode; the reasons are above")
        yield found


def _by_length(stretch: float) -> list[float]:
    """Return the seconds of the shortest runtime that fits, by length in tokens from 0."""
    static = BASE.times.static_s
    return [
        stretch * next(took for took, most in zip(static, MAX_LENGTHS, strict=True) if length <= most)
        for length in range(BASE.times.longest + 1)
    ]


def _add_dispatchers(repository: Path, front: EmulatedModel) -> None:
    for dispatcher in _DISPATCHERS.values():
        modules = (dispatchers_model, dispatchers)
        write_front(repository, front, dispatcher, modules, {"dispatcher": dispatcher})


if __name__ == "__main__":
    typer.run(main)
