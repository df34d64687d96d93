"""`python -m benchmarks.cluster [--quick] [--json FILE]`."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from benchmarks.cluster import replan
from benchmarks.cluster.plot import plot
from benchmarks.kept import cache_folder
from benchmarks.report import Claim, Report, machine_line, progress
from testing.models import make_tiny_classifier
from testing.processes import tritonserver_of
from tidal.repository.allocation import make_allocation, write_allocation
from tidal.repository.names import runtime_model
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import Client
from tidal_client.load import LoadResult, RequestVariant, Schedule, poisson, run_load, text_inputs

MODEL = "free_partitioned"
_SHORT, _LONG = 32, 256
# Deadline of the queries while a node is lost, in ms.
_DEADLINE_MS = 5000


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a run.

    Attributes:
        rounds: Number of rounds.
        queries: Lone queries per node and round.
        seconds: Length of the load during which a node is lost, in seconds.
        rate: Queries per second of that load.
    """

    rounds: int
    queries: int
    seconds: float
    rate: float


FULL = Size(rounds=8, queries=400, seconds=30.0, rate=60.0)
QUICK = Size(rounds=3, queries=100, seconds=12.0, rate=40.0)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; under 3 minutes.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write results here, tables (.txt) and a plot beside it.")] = None,
) -> None:
    """Measure two nodes that run the queries of one partitioned model together, and the decisions about 100 nodes.

    Both servers run on this machine, so throughput is not measured. The model has random weights and costs next to
    nothing. The 100 nodes are simulated; `python -m benchmarks.cluster.replan` measures their part alone.
    """
    size = QUICK if quick else FULL
    report = Report("cluster", quick)
    source = prepare()
    print(machine_line())
    replan.measure(report, quick)
    with two_nodes(source) as (a, b):
        _measure_hop(report, a, b, size)
        _lose_node(report, a, b, size)
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))


def prepare() -> Path:
    """Build the model unless it is up to date; returns its repository."""
    folder = cache_folder() / "cluster"
    if not (folder / "source").exists():
        make_tiny_classifier(folder / "source", layers=1, hidden=32, max_position=_LONG)
    fields = {"kind": "arlo", "placement": "partitioned", "precision": "fp32", "form": "static", "threads": 1}
    spec = {"name": MODEL, "model": str(folder / "source"), "lengths": [_SHORT, _LONG], "max_batch": 1, **fields}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    progress("building the model (skipped if it is up to date)")
    command = ["build", str(folder / "spec.yaml"), "--repository", str(folder / "repository")]
    subprocess.run([sys.executable, "-m", "tidal_client.main", *command], check=True, stdout=sys.stderr)
    return folder / "repository"


@contextmanager
def two_nodes(source: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    """Serve the model on two nodes until the block ends; `a` lacks the short runtime and uses that of `b`.

    Args:
        source: Repository with the built model.
    """
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder:
        for name, short in (("a", 0), ("b", 1)):
            for model in (MODEL, runtime_model(MODEL, _SHORT), runtime_model(MODEL, _LONG)):
                shutil.copytree(source / model, Path(folder) / name / model)
            write_allocation(Path(folder) / name / MODEL, make_allocation({_SHORT: short, _LONG: 1}))
        progress("starting two nodes")
        options = ("--exit-timeout", "3", "--server-restarts", "3")
        with tidal_serve(Path(folder) / "a", *options) as a, tidal_serve(Path(folder) / "b", *options) as b:
            node = f"b={b.state.grpc},http={b.state.http}"
            command = [sys.executable, "-m", "tidal_client.main", "cluster", "connect", MODEL, node]
            command += ["--repository", str(Path(folder) / "a")]
            subprocess.run(command, check=True, stdout=sys.stderr)
            _wait_for_runtime(a, _SHORT)
            yield a, b


def _measure_hop(report: Report, a: RunningServer, b: RunningServer, size: Size) -> None:
    """Lone queries of the short runtime: at `b`, which has it, and at `a`, which sends them to `b`."""
    texts = _texts(2 * size.rounds * size.queries)
    found: dict[str, list[float]] = {"local": [], "remote": []}
    tails: dict[str, list[float]] = {"local": [], "remote": []}
    with Client(b.grpc) as at_b, Client(a.grpc) as at_a:
        for number in range(size.rounds):
            progress(f"lone queries, round {number + 1} of {size.rounds}")
            order = [("local", at_b), ("remote", at_a)]
            for where, client in order if number % 2 else reversed(order):
                taken = []
                for _ in range(size.queries):
                    text = texts.pop()
                    began = time.perf_counter()
                    answer = client.classify(MODEL, text)
                    taken.append((time.perf_counter() - began) * 1e3)
                    if answer.max_length != _SHORT:
                        raise SystemExit(f"a query ran on the runtime of {answer.max_length} tokens; expected {_SHORT}")
                found[where].append(float(np.median(taken)))
                tails[where].append(float(np.percentile(taken, 99)))
    added = [remote - local for remote, local in zip(found["remote"], found["local"], strict=True)]
    rows = [[where, _spread(found[where]), _spread(tails[where])] for where in found]
    report.add_table("lone queries, medians of rounds (range)", ["instance", "p50 ms", "p99 ms"], rows)
    report.measured["lone"] = {"p50_ms": found, "p99_ms": tails, "added_p50_ms": added}
    note = f"{size.rounds} rounds of {size.queries} queries, {_spread(added)} ms; both nodes on this machine"
    report.claims.append(Claim("remote_hop_p50_ms", "<= 1.0", statistics.median(added), note=note))


def _lose_node(report: Report, a: RunningServer, b: RunningServer, size: Size) -> None:
    """A load on both entrances, in the middle of which the tritonserver of `b` is killed."""
    texts = _texts(round(size.rate * size.seconds * 2))
    times = poisson(size.rate, seconds=size.seconds, seed=7)
    schedule = Schedule(times, text_inputs(texts), (RequestVariant(parameters={"latency_ms": _DEADLINE_MS}),))
    killed_at: list[float] = []

    def kill() -> None:
        time.sleep(size.seconds / 3)
        killed_at.append(time.time())
        tritonserver_of(b).kill()

    progress("a load on two entrances, of which one is killed")
    killer = threading.Thread(target=kill)
    killer.start()
    result = run_load([a.grpc, b.grpc], MODEL, schedule, retries=3)
    killer.join()
    failed = int((~result.answered).sum())
    slow_s = _slowest_after(result, killed_at[0] - result.started)
    report.measured["loss"] = {
        "queries": len(schedule),
        "failed": failed,
        "messages": dict(result.messages),
        "killed_at_s": killed_at[0] - result.started,
        "sent_s": result.scheduled.tolist(),
        "latency_s": result.latency.tolist(),
        "slowest_after_s": slow_s,
    }
    rows = [[str(len(schedule)), str(failed), f"{slow_s:.2f}", f"{np.median(result.latency) * 1e3:.1f}"]]
    columns = ["queries", "failed", "slowest answer after the kill, s", "p50 ms"]
    report.add_table("the server of one of two nodes is killed", columns, rows)
    note = f"{len(schedule)} queries at {size.rate:g}/s to two entrances, deadline {_DEADLINE_MS / 1e3:g} s, 1 kill"
    report.claims.append(Claim("failed_on_node_loss[tritonserver]", "== 0", failed, note=note))
    note = "the slowest query that was sent within 5 s after the kill"
    report.claims.append(Claim("recovery_after_node_loss_s[tritonserver]", "<= 2", slow_s, note=note))


def _texts(count: int) -> list[str]:
    """Return different texts that fit the short runtime."""
    return [f"good song {number}" for number in range(count)]


def _slowest_after(result: LoadResult, moment_s: float) -> float:
    sent = result.scheduled
    return float(result.latency[(sent > moment_s - 1) & (sent < moment_s + 5)].max())


def _wait_for_runtime(server: RunningServer, max_length: int) -> None:
    """Wait until short queries run on this runtime, here or on another node."""
    end = time.monotonic() + 30
    with Client(server.grpc) as client:
        while client.classify(MODEL, "good").max_length != max_length:
            if time.monotonic() > end:
                raise SystemExit(f"no node runs queries on the runtime of {max_length} tokens")
            time.sleep(0.1)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    typer.run(main)
