"""The scenarios, in the order in which they run, and a run of some of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.models import build_all
from reliability.rows import Guarantee
from reliability.scenarios import (
    allocation,
    builds,
    cancellations,
    cluster,
    gateway_disconnects,
    gateway_fuzz,
    gateway_kills,
    gateway_overload,
    hostile,
    killed_server,
    killed_stubs,
    malformed,
    memory,
    overload,
    publishing,
    tasks,
)
from reliability.server_under_test import ServerUnderTest

# `memory` first, on a fresh server; `killed_server`, `gateway_kills` and `cluster` last, because they need new servers.
SCENARIOS: dict[str, Callable[[ServerUnderTest], list[Guarantee]]] = {
    "memory": memory.run,
    "publishing": publishing.run,
    "tasks": tasks.run,
    "allocation": allocation.run,
    "builds": builds.run,
    "overload": overload.run,
    "malformed": malformed.run,
    "hostile": hostile.run,
    "cancellations": cancellations.run,
    "gateway_fuzz": gateway_fuzz.run,
    "gateway_disconnects": gateway_disconnects.run,
    "gateway_overload": gateway_overload.run,
    "killed_stubs": killed_stubs.run,
    "killed_server": killed_server.run,
    "gateway_kills": gateway_kills.run,
    "cluster": cluster.run,
}
#: Module that a scenario needs, and the extra that has it; without it the scenario is skipped.
NEEDS = {"cluster": ("ray", "ray")}


@contextmanager
def server_under_test(folder: Path, names: Sequence[str], *, quick: bool) -> Iterator[ServerUnderTest]:
    """Yield the server under test for these scenarios; it ends with the block.

    Args:
        folder: Folder to build and serve in.
        names: Names of the scenarios.
        quick: Whether fewer requests and changes suffice.
    """
    target = ServerUnderTest(
        build_all(folder, heavy=not {"overload", "gateway_overload"}.isdisjoint(names)), folder, quick
    )
    try:
        yield target
    finally:
        target.stop()


def run(names: Sequence[str], *, quick: bool, report_progress: Callable[[str], None]) -> list[Guarantee]:
    """Run scenarios one after the other; return the rows of the table.

    Args:
        names: Names of the scenarios, keys of `SCENARIOS`.
        quick: Whether fewer requests and changes suffice.
        report_progress: Receives the name of the next step.
    """
    rows: list[Guarantee] = []
    with TemporaryDirectory(prefix="tidal-reliability-") as folder:
        report_progress("building a tiny model for every backend")
        with server_under_test(Path(folder), names, quick=quick) as target:
            for name, scenario in SCENARIOS.items():
                if name not in names:
                    continue
                if reason := missing(name):
                    report_progress(f"{name} is skipped: {reason}")
                    continue
                report_progress(name)
                rows += scenario(target)
            return [*rows, counted(target)]


def missing(name: str) -> str:
    """Return why a scenario cannot run here; empty if it can.

    Args:
        name: Name of the scenario.
    """
    module, extra = NEEDS.get(name, ("", ""))
    if not module or importlib.util.find_spec(module) is not None:
        return ""
    return f"{module} is not installed: install the extra {extra}, pip install 'tidal[{extra}]'"


def counted(target: ServerUnderTest) -> Guarantee:
    """Return the row that compares the answers that clients received with those that the server counted.

    Args:
        target: Server under test after its scenarios.
    """
    apart = [
        f"{model}: {client} read, {server} counted" for model, client, server in target.counted if client != server
    ]
    requests = sum(client for _, client, _ in target.counted)
    differ = sum(abs(client - server) for _, client, server in target.counted)
    what = "requests answered exactly once, by clients and server"
    return Guarantee(what, requests, len(target.counted), differ, differ, "apart", "== 0", "; ".join(apart)[:300])
