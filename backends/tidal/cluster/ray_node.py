"""Starting Ray's processes of a head or a node, and the actors on them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.cluster.agent import NodeAgent
from tidal.cluster.autoscaling import NODE_RESOURCE, request_nodes
from tidal.cluster.connection import LOOPBACK, environment
from tidal.cluster.handles import CONTROLLER, NAMESPACE, RayAgents, agent_name
from tidal.cluster.records import StartedProcess, records_folder
from tidal.cluster.redis import redis_variables
from tidal.controller.controller import POLL_S, ClusterController
from tidal.controller.decisions import PlanSettings
from tidal.controller.local_node import LocalNode
from tidal.controller.metrics_page import PageAddress
from tidal.errors import Unavailable
from tidal.server.endpoints import choose_port

_START_S = 120.0
_ANSWER_S = 10.0
# Queries and answers never pass through Ray's object store; this is the smallest that it accepts.
_OBJECT_STORE_BYTES = 80_000_000


@dataclass(frozen=True, slots=True)
class RayProcess:
    """Ray's processes of one node.

    Attributes:
        process: The process that holds them.
        folder: Folder of their temporary files and logs.
        resource: Resource that identifies the node in Ray.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    resource: str

    @property
    def started(self) -> StartedProcess:
        """The process for a record."""
        return StartedProcess.of(self.process.pid)

    def check(self) -> None:
        """Check that it runs.

        Raises:
            Unavailable: It has ended; the message has the end of its output.
        """
        if self.process.poll() is not None:
            raise Unavailable(f"Ray did not start: {last_line(self.folder / 'output')}")


def last_line(output: Path) -> str:
    """Return the last line that Ray's processes wrote.

    Args:
        output: File with what they wrote.
    """
    try:
        lines = output.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else f"see {output.parent}"


def new_token() -> Path:
    """Write a new secret of a cluster to a file that only this user can read."""
    path = records_folder() / "token"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return path


def start_head(host: str, port: int, token: Path | None, redis: str | None = None) -> RayProcess:
    """Start Ray's processes of a head.

    Args:
        host: Address to listen on.
        port: Port that nodes join at.
        token: File with the cluster's secret.
        redis: `host:port` of the Redis that has the head's state; None: the head has it itself.
    """
    # The port of Ray's client protocol, which Tidal does not use, cannot be turned off.
    client_port = choose_port(host)
    options = ["--head", f"--port={port}", f"--ray-client-server-port={client_port}", "--include-dashboard=false"]
    return _start(options, host, token, {} if redis is None else redis_variables(redis, f"{host}:{port}"))


def start_node(address: str, host: str, token: Path | None, variables: Mapping[str, str]) -> RayProcess:
    """Start Ray's processes of a node.

    Args:
        address: `host:port` of the head.
        host: Address of this machine.
        token: File with the cluster's secret.
        variables: Further variables of their environment.
    """
    return _start([f"--address={address}"], host, token, variables, {NODE_RESOURCE: 1})


def wait_for_head(started: RayProcess, address: str) -> None:
    """Wait until a head accepts connections.

    Raises:
        Unavailable: It ended, or does not in time.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        started.check()
        try:
            socket.create_connection((host, int(port)), 1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise Unavailable(f"Ray did not start within {_START_S:g} s, see {started.folder}")


def wait_for_node(ray: Any, started: RayProcess) -> str:
    """Wait until a node has joined, and return Ray's id of it.

    Raises:
        Unavailable: It ended, or does not join in time.
    """
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        started.check()
        for node in ray.nodes():
            if node["Alive"] and started.resource in node["Resources"]:
                return str(node["NodeID"])
        time.sleep(0.1)
    raise Unavailable(f"Ray's node did not join within {_START_S:g} s, see {started.folder}")


def start_controller(ray: Any, started: RayProcess, settings: PlanSettings, metrics: PageAddress | None = None) -> None:
    """Start the cluster's controller on its head, and wait for its first status; one of a lost head is replaced.

    Args:
        ray: The module `ray`, connected.
        started: Ray's processes of the head.
        settings: Settings of its decisions.
        metrics: Address of its metrics; None: not served.

    Raises:
        Unavailable: The name of a lost head's controller stays in use, or the controller does not answer.
    """
    options = _pinned(ray, wait_for_node(ray, started), CONTROLLER)
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(CONTROLLER, namespace=NAMESPACE))
    actor = ray.remote(ClusterController).options(**options)
    controller = _created(actor, RayAgents(), settings, metrics, poll_s=POLL_S, request_nodes=request_nodes)
    if controller is None:
        raise Unavailable("the name of the lost head's controller stays in use: start the head again")
    try:
        # Ray drops an actor, also a detached one, whose creator disconnects before it has been created.
        ray.get(controller.status.remote(), timeout=_START_S)
    except ray.exceptions.RayError as error:
        raise Unavailable(f"the controller does not start: {error}") from None


def start_agent(
    ray: Any,
    node_id: str,
    server: LocalNode,
    name: str,
    memory: Path,
    entrances: Path,
    metrics: PageAddress | None = None,
) -> None:
    """Start the agent of a node, and wait for its first report.

    Args:
        ray: The module `ray`, connected.
        node_id: Ray's id of the node.
        server: Server of the node.
        name: Name of the node.
        memory: File that the agent keeps over its restarts.
        entrances: File that it writes the cluster's servers to.
        metrics: Address of the agent's metrics; None: not served.

    Raises:
        Unavailable: Another node has the name, or the agent does not answer.
    """
    _replace_agent(ray, name)
    actor = ray.remote(NodeAgent).options(**_pinned(ray, node_id, agent_name(name)))
    agent = _created(actor, server, memory, entrances, metrics)
    if agent is None:
        raise Unavailable(f"the name of node '{name}' stays in use: give it another one with --name")
    try:
        ray.get(agent.report.remote(), timeout=_START_S)
    except ray.exceptions.RayError as error:
        raise Unavailable(f"the agent of node '{name}' does not start: {error}") from None


def _created(actor: Any, *arguments: Any, **options: Any) -> Any | None:
    """Create an actor; None if its name stays in use, which Ray removes some time after an actor with it has ended."""
    until = time.monotonic() + _ANSWER_S
    while time.monotonic() < until:
        with contextlib.suppress(ValueError):
            return actor.remote(*arguments, **options)
        time.sleep(0.2)
    return None


def _replace_agent(ray: Any, name: str) -> None:
    """End an agent that does not answer, as that of a node which was killed and is started again."""
    try:
        agent = ray.get_actor(agent_name(name), namespace=NAMESPACE)
    except ValueError:
        return
    try:
        ray.get(agent.report.remote(), timeout=_ANSWER_S)
    except ray.exceptions.RayError:
        ray.kill(agent)
        return
    raise Unavailable(f"the cluster has a node '{name}' already: give this one another name with --name")


def _pinned(ray: Any, node_id: str, name: str) -> dict[str, Any]:
    """Return the options of a named actor that lives on one node, and is restarted there without limit."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": 8,
        "num_cpus": 0,
        "scheduling_strategy": strategy,
    }


def _start(
    options: list[str],
    host: str,
    token: Path | None,
    variables: Mapping[str, str],
    resources: Mapping[str, int] | None = None,
) -> RayProcess:
    # Not the name of the node: until Ray notices that a node was killed, the same one may start again.
    resource = f"tidal_{secrets.token_hex(8)}"
    # Paths of sockets, which Ray derives from it, must be short.
    folder = Path(tempfile.mkdtemp(prefix="tidal-ray-", dir="/tmp"))
    module = "tidal.cluster.ray_start" if host == LOOPBACK else "ray.scripts.scripts"
    command = [
        *(sys.executable, "-m", module, *([] if host == LOOPBACK else ["start"])),
        *("--block", "--disable-usage-stats", "--include-log-monitor=false", *options),
        *(
            f"--node-ip-address={host}",
            f"--temp-dir={folder}",
            f"--resources={json.dumps({resource: 1, **(resources or {})})}",
        ),
        # Neither actors nor tasks of others run here; the devices belong to the server.
        *("--num-cpus=0", "--num-gpus=0", f"--object-store-memory={_OBJECT_STORE_BYTES}"),
    ]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment(token), **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return RayProcess(process, folder, resource)
