"""Ten thousand requests that try to exhaust the server, over both protocols, more than 500 of them above 4 MB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from reliability.bench import Bench
from reliability.fuzzing.flooding import Outcome, flood_grpc, flood_http
from reliability.fuzzing.hostile_grpc import hostile_grpc
from reliability.fuzzing.hostile_http import LARGE, hostile_http, tiny_chunks
from reliability.rows import Row, none_failed

_SEED = 31_000
_HTTP_CLIENTS, _GRPC_CLIENTS = 3, 1
# Of each client: requests, and those above 4 MB.
_HTTP, _GRPC = (2_600, 150), (1_900, 100)
_QUICK_HTTP, _QUICK_GRPC = (60, 2), (40, 2)
LEAST, LEAST_LARGE = 10_000, 500


def run(bench: Bench) -> list[Row]:
    """Send them from several clients while all models are asked."""
    quick = bench.quick
    report, names = bench.served.report, [model.name for model in bench.models]
    http, grpc = (_QUICK_HTTP, _QUICK_GRPC) if quick else (_HTTP, _GRPC)
    before = bench.processes()
    # Some of them are valid and answered, so counters say nothing about the load.
    with bench.load(uncounted=names) as load, ThreadPoolExecutor(_HTTP_CLIENTS + _GRPC_CLIENTS) as pool:
        seeds = range(_SEED, _SEED + _HTTP_CLIENTS)
        jobs = [pool.submit(flood_http, report["http"], hostile_http(seed, *http, names)) for seed in seeds]
        jobs += [
            pool.submit(flood_grpc, report["grpc"], hostile_grpc(seed, *grpc, names)) for seed in seeds[:_GRPC_CLIENTS]
        ]
        found = list(chain.from_iterable(job.result() for job in jobs))
        if not quick:
            found += flood_http(report["http"], tiny_chunks(names))
        load.goes_on(20)
    lost = before - bench.processes()
    big = sum(each.size > LARGE for each in found)
    silent = [each for each in found if each.unanswered]
    enough = quick or (len(found) >= LEAST and big >= LEAST_LARGE)
    note = f"{big} above 4 MB; tritonserver took {_peak_mib(bench.server_pid)} MiB at most; {_ends(found)}"
    return [
        Row("processes that hostile requests end", len(found), 0, len(lost), len(lost), "lost", "== 0", note, enough),
        Row("hostile requests without an answer", len(found), 0, len(silent), len(silent), "unanswered", "== 0",
            "; ".join(f"{number}x {what}" for what, number in Counter(each.what for each in silent).most_common(3))),
        none_failed("other requests meanwhile (hostile)", len(load.sent), len(found), load.failures(), quick=quick),
    ]  # fmt: skip


def _ends(found: Sequence[Outcome]) -> str:
    return ", ".join(f"{number} {end}" for end, number in Counter(each.end for each in found).most_common())


def _peak_mib(pid: int) -> str:
    """Most memory that a process has had, or `?` where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "?"
    return next((str(int(line.split()[1]) // 1024) for line in lines if line.startswith("VmHWM:")), "?")
