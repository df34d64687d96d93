"""tritonserver, or `tidal serve` around it, killed under load: nothing of it is left, and the former is restarted."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from reliability.rows import Guarantee
from reliability.server_under_test import ServerUnderTest
from testing.serving import Served
from testing.waiting import until
from tidal.server.cleanup import SHARED_MEMORY

SERVED_AGAIN_S = 60.0
_ROUNDS = 3
_CLEAN_WITHIN_S = 30.0


@dataclass
class _KillResult:
    """Results of several rounds.

    Attributes:
        left: Processes and files that were left.
        clean_s: Longest time until nothing was left, seconds.
        served_s: Time until all models were served again, by round, seconds.
        requests: Number of requests that were sent.
    """

    left: list[str] = field(default_factory=list)
    clean_s: float = 0.0
    served_s: list[float] = field(default_factory=list)
    requests: int = 0


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Kill tritonserver, then `tidal serve`, with a fresh server each time."""
    rounds = 1 if target.quick else _ROUNDS
    found = _KillResult()
    for _ in range(rounds):
        _kill_server(target, found)
        target.stop()
    rows = [
        _none_left("tritonserver", found, rounds),
        Guarantee(
            "a killed tritonserver serves all models again by itself",
            found.requests,
            rounds,
            0,
            max(found.served_s),
            "s",
            f"<= {SERVED_AGAIN_S:g}",
            ", ".join(f"{each:.1f}" for each in found.served_s),
        ),
    ]
    if target.quick:
        return rows
    found = _KillResult()
    for _ in range(rounds):
        _kill_tidal_serve(target, found)
        target.stop()
    return [*rows, _none_left("tidal serve", found, rounds)]


def _none_left(what: str, found: _KillResult, rounds: int) -> Guarantee:
    note = found.left[0] if found.left else f"clean after {found.clean_s:.1f} s at most"
    return Guarantee(
        f"SIGKILL of {what}: processes, shared memory, files left",
        found.requests,
        rounds,
        0,
        len(found.left),
        "left",
        "== 0",
        note,
    )


def _kill_server(target: ServerUnderTest, found: _KillResult) -> None:
    """Kill tritonserver; wait until nothing of it is left and a new one answers for every model."""
    served = target.served
    with target.load(timeout_s=5.0) as load:
        load.wait_for(100)
        processes, files = _owned(served)
        sent_before, killed = len(load.sent), time.monotonic()
        os.kill(target.server_pid, signal.SIGKILL)

        def left() -> list[str]:
            return [
                *(f"process {each.pid}" for each in processes if _runs(each)),
                *(str(f) for f in files if f.exists()),
            ]

        def serve() -> bool:
            answered = {each.model for each in load.sent[sent_before:] if each.answered and each.start > killed}
            return answered == {model.name for model in target.models}

        until(lambda: not left(), _CLEAN_WITHIN_S)
        found.clean_s = max(found.clean_s, time.monotonic() - killed)
        until(serve, 2 * SERVED_AGAIN_S)
        found.served_s.append(time.monotonic() - killed)
        found.left += left()
    found.requests += len(load.sent)


def _kill_tidal_serve(target: ServerUnderTest, found: _KillResult) -> None:
    served = target.served
    with target.load(timeout_s=5.0) as load:
        load.wait_for(100)
        killed = time.monotonic()
        os.kill(served.process.pid, signal.SIGKILL)
        until(lambda: not left_behind(served), _CLEAN_WITHIN_S)
        found.clean_s = max(found.clean_s, time.monotonic() - killed)
        found.left += left_behind(served)
    found.requests += len(load.sent)


def _owned(served: Served) -> tuple[list[psutil.Process], list[Path]]:
    """Return the processes and the shared memory of the running tritonserver."""
    server = psutil.Process(served.state["server_pid"])
    return [server, *server.children(recursive=True)], list(SHARED_MEMORY.glob(f"tidal_{served.process.pid}_*"))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def left_behind(served: Served) -> list[str]:
    """Return what is left of a server, except the state file, which the next command removes.

    Args:
        served: Server that was killed.
    """
    state = {str(path) for path in (served.runtime / "tidal").glob("*.json")}
    return [each for each in served.left_behind() if each not in state]
