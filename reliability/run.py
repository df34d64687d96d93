"""The scenarios, in the order in which they happen, and one run of some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.bench import Bench
from reliability.models import build_all
from reliability.rows import Row
from reliability.scenarios import (
    allocation,
    builds,
    cancellations,
    hostile,
    killed_server,
    killed_stubs,
    malformed,
    memory,
    overload,
    publishing,
    tasks,
)

# `memory` first, on a server that has done nothing else; `killed_server` last, which needs a new one each time.
SCENARIOS: dict[str, Callable[[Bench], list[Row]]] = {
    "memory": memory.run,
    "publishing": publishing.run,
    "tasks": tasks.run,
    "allocation": allocation.run,
    "builds": builds.run,
    "overload": overload.run,
    "malformed": malformed.run,
    "hostile": hostile.run,
    "cancellations": cancellations.run,
    "killed_stubs": killed_stubs.run,
    "killed_server": killed_server.run,
}


@contextmanager
def open_bench(folder: Path, names: Sequence[str], *, quick: bool) -> Iterator[Bench]:
    """The bench for these scenarios, in a folder; its server ends with the block."""
    bench = Bench(build_all(folder, heavy="overload" in names), folder, quick)
    try:
        yield bench
    finally:
        bench.stop()


def run(names: Sequence[str], *, quick: bool, told: Callable[[str], None]) -> list[Row]:
    """Run scenarios one after the other.

    Args:
        names: of `SCENARIOS`.
        quick: fewer requests and changes of each.
        told: what happens next.
    """
    rows: list[Row] = []
    with TemporaryDirectory(prefix="tidal-reliability-") as folder:
        told("building a tiny model for every backend")
        with open_bench(Path(folder), names, quick=quick) as bench:
            for name, scenario in SCENARIOS.items():
                if name in names:
                    told(name)
                    rows += scenario(bench)
            return [*rows, counted(bench)]


def counted(bench: Bench) -> Row:
    """Whether what clients have read and what the server has counted are one number, of every model in every load."""
    apart = [f"{model}: {client} read, {server} counted" for model, client, server in bench.counted if client != server]
    requests = sum(client for _, client, _ in bench.counted)
    differ = sum(abs(client - server) for _, client, server in bench.counted)
    what = "requests answered exactly once, by clients and server"
    return Row(what, requests, len(bench.counted), differ, differ, "apart", "== 0", "; ".join(apart)[:300])
