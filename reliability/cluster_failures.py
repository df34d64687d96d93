"""The failures of a cluster's parts: each makes one happen, and returns when it was and what went wrong then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from reliability.clusters import KEPT, LOST, ClusterUnderTest
from testing.clusters import row, runs
from testing.waiting import until
from tidal.repository.cluster_table import read_cluster_table
from tidal.repository.names import runtime_model
from tidal.server.stubs import live_stubs

#: When a failure happened, and what went wrong.
Outcome = tuple[float, list[str]]

PAUSE_S = 10.0
_OVER_S = 120.0
# Ray's processes on the nodes end about 70 s after their head.
_RAY_ENDS_S = 180.0
_RAY_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of one part of a cluster.

    Attributes:
        what: Event, as a phrase.
        loses: Whether the entrance of one node is lost or stops for a while.
        happen: Makes it happen; returns when it did, `time.monotonic()` seconds, and what went wrong until it is over.
    """

    what: str
    loses: bool
    happen: Callable[[ClusterUnderTest], Outcome]


def kill_controller(running: ClusterUnderTest) -> Outcome:
    """Kill the process of the controller; Ray restarts it."""
    old = running.status()["controller"]["pid"]
    moment = _kill(old)

    def restarted() -> bool:
        return running.status()["controller"].get("pid") not in (None, old) and running.steady()

    return moment, _waited(restarted, "the controller is not restarted")


def kill_agent(running: ClusterUnderTest) -> Outcome:
    """Kill the process of an agent; Ray restarts it."""
    old = row(running.status(), LOST)["agent"]
    moment = _kill(old)

    def restarted() -> bool:
        return row(running.status(), LOST).get("agent") not in (None, old) and running.steady()

    return moment, _waited(restarted, "the agent is not restarted")


def kill_stub(running: ClusterUnderTest) -> Outcome:
    """Kill the process of an instance that both entrances use; tritonserver starts another one."""
    server, model = running.server(LOST), runtime_model(running.split, running.lengths[0])
    old = {stub.pid for stub in live_stubs(server.server_pid) if stub.model == model}
    moment = _kill(*old)

    def restarted() -> bool:
        stubs = live_stubs(running.server(LOST).server_pid)
        return any(stub.model == model and not stub.completes_config and stub.pid not in old for stub in stubs)

    return moment, _waited(restarted, "the instance is not started again")


def kill_tritonserver(running: ClusterUnderTest) -> Outcome:
    """Kill a node's tritonserver; its `tidal serve` starts it again."""
    old = running.server(LOST).server_pid
    moment = _kill(old)
    return moment, _waited(
        lambda: running.server(LOST).server_pid != old and running.steady(), "tritonserver does not serve again"
    )


def pause_node(running: ClusterUnderTest) -> Outcome:
    """Stop all processes of a node for some seconds."""
    # By group, so that all processes go on at the same time, as on a machine that was paused.
    groups = {os.getpgid(each.pid) for each in running.commands.processes(LOST) if runs(each)}
    moment = time.monotonic()
    try:
        for group in groups:
            os.killpg(group, signal.SIGSTOP)
        time.sleep(PAUSE_S)
    finally:
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)
    return moment, _waited(running.steady, "the node is not used again")


def drain_node(running: ClusterUnderTest) -> Outcome:
    """Drain a node, then use it again."""
    moment = time.monotonic()
    drained = running.commands.outcome("drain", LOST)
    wrong = [f"drain: {drained.stderr}"] if drained.returncode else []
    wrong += _waited(lambda: running.used(KEPT, LOST) == 0, "the other front uses the drained node")
    again = running.commands.outcome("drain", LOST, "--undo")
    wrong += [f"drain --undo: {again.stderr}"] if again.returncode else []
    return moment, wrong + _waited(running.steady, "the node is not used again")


def kill_node(running: ClusterUnderTest) -> Outcome:
    """Kill all processes of a node; the controller plans without it when Ray notices."""
    processes = [each for each in running.commands.processes(LOST) if runs(each)]
    moment = time.monotonic()
    for process in processes:  # as if the machine was lost: none may clean up after the others
        process.suspend()
    for process in processes:
        process.kill()

    def planned() -> bool:
        state = running.status()
        devices = state["plans"].get(running.split, {}).get("devices", {})
        return [each["node"] for each in state["nodes"]] == _left(running) == sorted(devices)

    wrong = _waited(lambda: running.used(KEPT, LOST) == 0, "the other front uses the lost node")
    return moment, wrong + _waited(planned, "the controller plans with the lost node")


def kill_raylet(running: ClusterUnderTest) -> Outcome:
    """Kill the raylet of a node: Ray there ends, its server goes on."""
    moment = _kill_named(running, LOST, "raylet")
    return moment, _waited(
        lambda: [each["node"] for each in running.status()["nodes"]] == _left(running),
        "the controller knows the lost node",
    )


def kill_head(running: ClusterUnderTest) -> Outcome:
    """Kill the GCS: Ray ends on the head, then on the nodes; fronts keep their tables."""
    tables = _tables(running)
    moment = _kill_named(running, "head", "gcs_server")
    left = running.commands.ray_processes("head", *_left(running))
    end = time.monotonic() + _RAY_ENDS_S
    while any(map(runs, left)) and time.monotonic() < end:
        time.sleep(_RAY_POLL_S)
    wrong = [f"process {each.pid} of Ray runs {_RAY_ENDS_S:g} s later" for each in left if runs(each)]
    return moment, wrong + ([] if _tables(running) == tables else ["a front's table has changed"])


#: What the nodes recover from, and last what ends one of them.
IN_ONE_CLUSTER = (
    Failure("the controller is killed", False, kill_controller),
    Failure("an agent is killed", False, kill_agent),
    Failure("a stub is killed", False, kill_stub),
    Failure("a node is drained", False, drain_node),
    Failure(f"a node is paused for {PAUSE_S:g} s", True, pause_node),
    Failure("a tritonserver is killed", True, kill_tritonserver),
    Failure("a node is killed, all its processes", True, kill_node),
)
#: What ends Ray, in another cluster.
OF_RAY = (
    Failure("a raylet is killed", False, kill_raylet),
    Failure("the head is killed (GCS)", False, kill_head),
)


def _waited(condition: Callable[[], bool], otherwise: str) -> list[str]:
    return [] if until(condition, _OVER_S) else [f"{otherwise} after {_OVER_S:g} s"]


def _kill(*processes: int) -> float:
    moment = time.monotonic()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    return moment


def _kill_named(running: ClusterUnderTest, name: str, program: str) -> float:
    (process,) = (each for each in running.commands.ray_processes(name) if runs(each) and each.name() == program)
    return _kill(process.pid)


def _left(running: ClusterUnderTest) -> list[str]:
    """Return the nodes other than the one that is lost."""
    return [name for name in running.names if name != LOST]


def _tables(running: ClusterUnderTest) -> list[set[str]]:
    repositories = [running.server(node).repository for node in running.names]
    return [set(read_cluster_table(repository / running.split).nodes) for repository in repositories]
