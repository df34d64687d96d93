"""What `tidal cluster stop` and `--block` do: let nodes leave their cluster, and end what runs on this machine."""

from __future__ import annotations

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

from tidal.cluster import ray_node
from tidal.cluster.connection import connected
from tidal.cluster.handles import CONTROLLER, NAMESPACE, RayAgents, agent_name
from tidal.cluster.records import HEAD, ClusterRecord, end_record, records
from tidal.cluster.redis import forget_head
from tidal.errors import TidalError, Unavailable

_POLL_S = 1.0
# A node that was no entrance loads an instance of the longest runtime of each model.
_LEAVE_S = 120.0


def stop() -> list[str]:
    """End what was started on this machine: nodes leave their cluster, then their servers and the head end.

    A `tidal serve` that a node joined with goes on, alone. Returns the names of what was ended.

    Raises:
        Unavailable: The head's state cannot be removed from Redis; all else was done.
    """
    known = records()
    for record in known:
        if record.name != HEAD and record.serve is None and record.ray.alive():
            with contextlib.suppress(TidalError):
                _leave(record)
    if any(record.name == HEAD for record in known):
        with contextlib.suppress(TidalError):
            _end_controller(known[0])
    nodes, heads = [each for each in known if each.name != HEAD], [each for each in known if each.name == HEAD]
    for together in (nodes, heads):  # while the head runs, nodes leave without errors in their logs
        if together:
            with ThreadPoolExecutor(len(together)) as pool:
                list(pool.map(end_record, together))
    for folder in {record.files.parent for record in known if record.files is not None}:
        shutil.rmtree(folder, ignore_errors=True)
    for head in heads:
        if head.redis is not None:
            forget_head(head.redis, head.address)
    return [record.name for record in known]


def stay(record: ClusterRecord, leave: threading.Event) -> None:
    """Wait for a request, then end the head or the node; a node leaves its cluster first.

    A head whose state is in Redis may be started again: it leaves its controller there.

    Args:
        record: The head or the node, without a server of its own.
        leave: Request to end it.

    Raises:
        Unavailable: Ray's processes ended before; the message has the end of their output.
    """
    while record.ray.alive():
        if leave.wait(_POLL_S):
            try:
                with contextlib.suppress(TidalError):
                    if record.name != HEAD:
                        _leave(record)
                    elif record.redis is None:
                        _end_controller(record)
            finally:
                end_record(record)
            return
    output = ray_node.last_line(record.folder / "output")
    end_record(record)
    raise Unavailable(f"Ray's processes of '{record.name}' have ended: {output}")


def _leave(record: ClusterRecord) -> None:
    """Let a node's fronts stop dispatching to others, and end its agent."""
    with connected(record.address, record.host, record.token) as ray:
        report = RayAgents().call({record.name: ("report",)}, 10.0)[record.name]
        models = [] if isinstance(report, TidalError) else [each.model for each in report.models]
        agent = ray.get_actor(agent_name(record.name), namespace=NAMESPACE)
        # The controller would write the tables again, so it must not reach the agent any more.
        ray.get(agent.leave.remote(models), timeout=_LEAVE_S)
        ray.kill(agent)


def _end_controller(head: ClusterRecord) -> None:
    if head.ray.alive():
        with connected(head.address, head.host, head.token) as ray, contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(CONTROLLER, namespace=NAMESPACE))
