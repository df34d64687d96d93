"""tritonserver, or `tidal serve` around it, killed under load: nothing of it is left, and the first comes back."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from reliability.bench import Bench
from reliability.rows import Row
from testing.serving import Served
from testing.waiting import until
from tidal.server.cleanup import SHARED_MEMORY

SERVED_AGAIN_S = 60.0
_ROUNDS = 3
_CLEAN_WITHIN_S = 30.0


@dataclass
class _Killed:
    """What several rounds showed."""

    left: list[str] = field(default_factory=list)
    clean_s: float = 0.0
    served_s: list[float] = field(default_factory=list)
    requests: int = 0


def run(bench: Bench) -> list[Row]:
    """Kill the one, then the other; a fresh server each time."""
    rounds = 1 if bench.quick else _ROUNDS
    found = _Killed()
    for _ in range(rounds):
        _kill_server(bench, found)
        bench.stop()
    rows = [
        _none_left("tritonserver", found, rounds),
        Row("a killed tritonserver serves all models again by itself", found.requests, rounds, 0,
            max(found.served_s), "s", f"<= {SERVED_AGAIN_S:g}", ", ".join(f"{each:.1f}" for each in found.served_s)),
    ]  # fmt: skip
    if bench.quick:
        return rows
    found = _Killed()
    for _ in range(rounds):
        _kill_tidal_serve(bench, found)
        bench.stop()
    return [*rows, _none_left("tidal serve", found, rounds)]


def _none_left(what: str, found: _Killed, rounds: int) -> Row:
    note = found.left[0] if found.left else f"clean after {found.clean_s:.1f} s at most"
    return Row(f"SIGKILL of {what}: processes, shared memory, files left", found.requests, rounds, 0, len(found.left),
               "left", "== 0", note)  # fmt: skip


def _kill_server(bench: Bench, found: _Killed) -> None:
    """What belonged to the first tritonserver is gone when the second one answers for every model."""
    served = bench.served
    with bench.load(timeout_s=5.0) as load:
        load.goes_on(100)
        processes, files = _belongings(served)
        asked, killed = len(load.sent), time.monotonic()
        os.kill(bench.server_pid, signal.SIGKILL)

        def left() -> list[str]:
            return [
                *(f"process {each.pid}" for each in processes if _runs(each)),
                *(str(f) for f in files if f.exists()),
            ]

        def serve() -> bool:
            answered = {each.model for each in load.sent[asked:] if each.answered and each.start > killed}
            return answered == {model.name for model in bench.models}

        until(lambda: not left(), _CLEAN_WITHIN_S)
        found.clean_s = max(found.clean_s, time.monotonic() - killed)
        until(serve, 2 * SERVED_AGAIN_S)
        found.served_s.append(time.monotonic() - killed)
        found.left += left()
    found.requests += len(load.sent)


def _kill_tidal_serve(bench: Bench, found: _Killed) -> None:
    served = bench.served
    with bench.load(timeout_s=5.0) as load:
        load.goes_on(100)
        killed = time.monotonic()
        os.kill(served.process.pid, signal.SIGKILL)
        until(lambda: not left_behind(served), _CLEAN_WITHIN_S)
        found.clean_s = max(found.clean_s, time.monotonic() - killed)
        found.left += left_behind(served)
    found.requests += len(load.sent)


def _belongings(served: Served) -> tuple[list[psutil.Process], list[Path]]:
    """Processes and shared memory of the tritonserver that runs."""
    server = psutil.Process(served.state["server_pid"])
    return [server, *server.children(recursive=True)], list(SHARED_MEMORY.glob(f"tidal_{served.process.pid}_*"))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def left_behind(served: Served) -> list[str]:
    """What is left of a server; the state file of a `tidal serve` that was killed is removed by the next command."""
    state = {str(path) for path in (served.runtime / "tidal").glob("*.json")}
    return [each for each in served.left_behind() if each not in state]
