"""tritonserver, or `tidal serve` around it, killed under load: nothing of it is left."""

from __future__ import annotations

import os
import signal
import time

from reliability.bench import Bench
from reliability.rows import Row
from tests.serve.served import Served
from tests.waiting import until

_ROUNDS = 3
_CLEAN_WITHIN_S = 30.0


def run(bench: Bench) -> list[Row]:
    """Kill the one, then the other; a fresh server each time."""
    rounds = 1 if bench.quick else _ROUNDS
    rows = []
    for what in ("tritonserver",) if bench.quick else ("tritonserver", "tidal serve"):
        left, took, requests = list[str](), 0.0, 0
        for _ in range(rounds):
            served = bench.served
            with bench.load(timeout_s=5.0) as load:
                load.goes_on(100)
                killed = time.monotonic()
                os.kill(bench.server_pid if what == "tritonserver" else served.process.pid, signal.SIGKILL)
                until(lambda served=served: not left_behind(served), _CLEAN_WITHIN_S)  # type: ignore[misc]
                took = max(took, time.monotonic() - killed)
                left += left_behind(served)
            requests += len(load.sent)
            bench.stop()
        note = left[0] if left else f"clean after {took:.1f} s at most"
        rows.append(Row(f"SIGKILL of {what}: processes, shared memory, files left", requests, rounds, 0, len(left),
                        "left", "== 0", note))  # fmt: skip
    return rows


def left_behind(served: Served) -> list[str]:
    """What is left of a server; the state file of a `tidal serve` that was killed is removed by the next command."""
    state = {str(path) for path in (served.runtime / "tidal").glob("*.json")}
    return [each for each in served.left_behind() if each not in state]
