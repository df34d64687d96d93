"""The search for the settings of Ray Serve that answer most per second, and a lone query the soonest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cluster.serve_routers.ray_serve import Mode, RayNodes
from benchmarks.cluster.serve_routers.rounds import Cell, Compared, Measuring
from benchmarks.cluster.serve_routers.systems import RaySystem
from benchmarks.report import Report, progress

_WARM_S = 0.3
_LONE_S = 0.7


@dataclass(frozen=True)
class Tried:
    """Settings that were tried.

    Attributes:
        mode: Name of the mode.
        system: Ray Serve with the settings.
        closed: A closed loop of many queries in flight.
        lone: A closed loop of one.
    """

    mode: str
    system: RaySystem
    closed: Cell
    lone: Cell

    @property
    def label(self) -> str:
        """Settings in words."""
        return f"{self.mode}: {self.system.form.label}"


def try_forms(measuring: Measuring, mode: Mode, nodes: RayNodes, *, in_flight: int, seconds: float) -> list[Tried]:
    """Measure the settings of a mode.

    Args:
        measuring: Measures a system.
        mode: The mode.
        nodes: Nodes that run in it.
        in_flight: Queries in flight.
        seconds: Length of a closed loop in seconds.
    """
    found = []
    loads = measuring.loads
    for form in mode.forms:
        progress(f"trying Ray Serve, {mode.name}: {form.label}")
        system = RaySystem(nodes, form)
        closed = loads.closed(in_flight=in_flight, seconds=seconds, warm_s=_WARM_S, seed=1)
        lone = loads.closed(in_flight=1, seconds=_LONE_S, warm_s=0.0, seed=2)
        found.append(Tried(mode.name, system, measuring.cell(system, closed), measuring.cell(system, lone)))
    return found


def best(tried: Sequence[Tried]) -> tuple[Tried, Tried]:
    """Return those that answer most per second, and a lone query the soonest; of those without a failure, if any."""
    sound = [each for each in tried if not each.closed.failed + each.lone.failed] or list(tried)
    return max(sound, key=lambda each: each.closed.per_second), min(sound, key=lambda each: each.lone.p50_ms)


def compared(chosen: tuple[Tried, Tried]) -> Compared:
    """Return the system of the rounds."""
    return Compared(chosen[0].system, chosen[1].system)


def report_search(
    report: Report, tried: Sequence[Tried], chosen: Sequence[tuple[Tried, Tried]], in_flight: int
) -> None:
    """Add the table of all settings."""
    uses = [("answers/s", [each[0] for each in chosen]), ("p50", [each[1] for each in chosen])]
    rows = [
        [
            each.label,
            f"{each.closed.per_second:.0f}",
            f"{each.lone.p50_ms:.2f}",
            str(each.closed.failed + each.lone.failed),
            f"{each.closed.cpu_ms:.2f}",
            " and ".join(use for use, of in uses if each in of),
        ]
        for each in tried
    ]
    columns = [f"Ray Serve, {in_flight} / 1 in flight", "answers/s", "p50 ms", "failed", "CPU ms", "chosen for"]
    report.add_table("settings that were tried, with the times of the profile", columns, rows)
    report.measured["search"] = [
        {"settings": each.label, "closed": each.closed.kept(), "lone": each.lone.kept()} for each in tried
    ]
    report.measured["settings"] = [[each.label for each in pair] for pair in chosen]
