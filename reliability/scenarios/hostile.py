"""Ten thousand requests that try to exhaust the server, over both protocols, more than 500 of them above 4 MB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from reliability.fuzzing.flooding import HostileOutcome, flood_grpc, flood_http
from reliability.fuzzing.hostile_grpc import hostile_grpc
from reliability.fuzzing.hostile_http import LARGE, hostile_http, tiny_chunks
from reliability.rows import Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest

_SEED = 31_000
_HTTP_CLIENTS, _GRPC_CLIENTS = 3, 1
# Requests of each client: small ones, and those above 4 MB.
_HTTP, _GRPC = (2_600, 150), (1_900, 100)
_QUICK_HTTP, _QUICK_GRPC = (60, 2), (40, 2)
MIN_HOSTILE, MIN_LARGE = 10_000, 500


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Send hostile requests from several clients while all models receive normal ones."""
    quick = target.quick
    report, names = target.served.report, [model.name for model in target.models]
    http, grpc = (_QUICK_HTTP, _QUICK_GRPC) if quick else (_HTTP, _GRPC)
    before = target.processes()
    # Some of them are valid and answered, so the counters do not match the load.
    with target.load(uncounted=names) as load, ThreadPoolExecutor(_HTTP_CLIENTS + _GRPC_CLIENTS) as pool:
        seeds = range(_SEED, _SEED + _HTTP_CLIENTS)
        jobs = [pool.submit(flood_http, report["http"], hostile_http(seed, *http, names)) for seed in seeds]
        jobs += [
            pool.submit(flood_grpc, report["grpc"], hostile_grpc(seed, *grpc, names)) for seed in seeds[:_GRPC_CLIENTS]
        ]
        found = list(chain.from_iterable(job.result() for job in jobs))
        if not quick:
            found += flood_http(report["http"], tiny_chunks(names))
        load.wait_for(20)
    lost = before - target.processes()
    big = sum(each.size > LARGE for each in found)
    silent = [each for each in found if each.unanswered]
    enough = quick or (len(found) >= MIN_HOSTILE and big >= MIN_LARGE)
    note = f"{big} above 4 MB; tritonserver took {_peak_mib(target.server_pid)} MiB at most; {_ends(found)}"
    return [
        Guarantee(
            "processes that hostile requests end", len(found), 0, len(lost), len(lost), "lost", "== 0", note, enough
        ),
        Guarantee(
            "hostile requests without an answer",
            len(found),
            0,
            len(silent),
            len(silent),
            "unanswered",
            "== 0",
            "; ".join(f"{number}x {what}" for what, number in Counter(each.what for each in silent).most_common(3)),
        ),
        none_failed("other requests meanwhile (hostile)", len(load.sent), len(found), load.failures(), quick=quick),
    ]


def _ends(found: Sequence[HostileOutcome]) -> str:
    return ", ".join(f"{number} {end}" for end, number in Counter(each.end for each in found).most_common())


def _peak_mib(pid: int) -> str:
    """Return the peak memory of a process in MiB, or `?` if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "?"
    return next((str(int(line.split()[1]) // 1024) for line in lines if line.startswith("VmHWM:")), "?")
