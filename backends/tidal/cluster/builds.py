"""Builds on the nodes of a cluster, one per class of devices, as tasks of Ray.

A version is built for a device, so each class has a store of its own. The newest version there is fetched first: a
build that is up to date publishes nothing, and another one gets the next number.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tidal.errors import InvalidArgument, TidalError, Unavailable

DEVICE = "{device}"
"""What stands for the class of devices in the URI of a store."""

_TIDAL = (sys.executable, "-m", "tidal_client.main")


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """The device of a node.

    Attributes:
        ray_node: Ray's id of the node.
        device: Processor or GPU, in words.
    """

    ray_node: str
    device: str


@dataclass(frozen=True, slots=True)
class ClassBuild:
    """A build for a class of devices.

    Attributes:
        device: The device, in words.
        node: Node that builds.
        ray_node: Ray's id of that node.
        store: URI of the store that receives the versions.
        nodes: All nodes with such devices.
    """

    device: str
    node: str
    ray_node: str
    store: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuildLine:
    """What a build says.

    Attributes:
        build: The build.
        text: A line of its progress, or the reason why it failed.
        models: Its models when it has ended, as `tidal cluster publish --json` prints them; None before that, or if it
            failed.
        failed: Whether it has failed.
    """

    build: ClassBuild
    text: str
    models: Sequence[Mapping[str, Any]] | None = None
    failed: bool = False


def plan_builds(devices: Mapping[str, NodeDevice], uri: str, only: Sequence[str] = ()) -> list[ClassBuild]:
    """Return one build per class of devices.

    Args:
        devices: Device of each node, by its name.
        uri: URI of the store, with `{device}` for the class of devices if there are several.
        only: Nodes that may build; empty: all, of which the first one of each class does.

    Raises:
        InvalidArgument: A node is unknown, or several classes would share a store.
    """
    for name in only:
        if name not in devices:
            raise InvalidArgument(f"--node {name}: the cluster's nodes are {', '.join(sorted(devices)) or 'none'}")
    classes: dict[str, list[str]] = {}
    for name in sorted(devices):
        classes.setdefault(devices[name].device, []).append(name)
    found = []
    for device, nodes in sorted(classes.items()):
        builders = [name for name in nodes if name in only] if only else nodes[:1]
        if builders:
            place = devices[builders[0]].ray_node
            found.append(ClassBuild(device, builders[0], place, uri.replace(DEVICE, device_slug(device)), tuple(nodes)))
    if len(found) > 1 and DEVICE not in uri:
        raise InvalidArgument(
            f"--to {uri}: the nodes have {len(found)} classes of devices, each of which needs a store of its own: "
            f"add {DEVICE} to the URI, or name the nodes of one class with --node"
        )
    return found


def device_slug(device: str) -> str:
    """Return a device as a part of a URI."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def run_builds(
    ray: Any, builds: Sequence[ClassBuild], specs: Sequence[str], names: Sequence[str]
) -> Iterator[BuildLine]:
    """Build on all nodes at the same time, and yield what the builds say, until all have ended.

    Args:
        ray: The module `ray`, connected.
        builds: Builds of the classes of devices.
        specs: Absolute paths of the specs, on every node that builds.
        names: Names of their models.
    """
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    said: SimpleQueue[BuildLine | None] = SimpleQueue()

    def follow(build: ClassBuild, lines: Any) -> None:
        try:
            last = ""
            for reference in lines:
                last = ray.get(reference)
                said.put(BuildLine(build, "" if last.startswith("[") else last))
            said.put(BuildLine(build, "done", models=json.loads(last)))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            said.put(BuildLine(build, str(cause) if isinstance(cause, TidalError) else str(error), failed=True))
        said.put(None)

    task = ray.remote(build_and_publish)
    running = []
    for build in builds:
        strategy = affinity(build.ray_node, soft=False)
        options = {"num_cpus": 0, "num_returns": "streaming", "max_retries": 0, "scheduling_strategy": strategy}
        running.append(task.options(**options).remote(list(specs), list(names), build.store))
        threading.Thread(target=follow, args=(build, running[-1]), daemon=True).start()
    left = len(builds)
    try:
        while left:
            line = said.get()
            left -= line is None
            if line is not None:
                yield line
    finally:
        if left:
            for each in running:
                ray.cancel(each, force=False)


def build_and_publish(specs: Sequence[str], names: Sequence[str], store: str) -> Iterator[str]:
    """Build specs on this machine and publish their models to a store; yields progress, last what was published.

    Args:
        specs: Absolute paths of the specs.
        names: Names of their models.
        store: URI of the store.

    Raises:
        Unavailable: A spec cannot be read here, or a step failed; the message has its last words.
    """
    for spec in specs:
        if not Path(spec).is_file():
            raise Unavailable(f"{spec} is not on this node: put specs and models into a folder that the nodes share")
    with tempfile.TemporaryDirectory(prefix="tidal-build-") as folder:
        repository = ("--repository", folder)
        for name in names:
            yield f"{name}: looking for its newest version in the store"
            subprocess.run([*_TIDAL, "cluster", "fetch", store, name, *repository], capture_output=True, check=False)
        yield from _lines([*_TIDAL, "build", *specs, *repository])
        yield "publishing"
        *_, published = _lines([*_TIDAL, "cluster", "publish", *names, "--to", store, *repository, "--json"])
        yield published


def _lines(command: Sequence[str]) -> Iterator[str]:
    """Run a command and yield what it prints.

    Raises:
        Unavailable: It failed.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    last = ""
    try:
        for line in process.stdout:
            if line.strip():
                last = line.strip()
                yield last
        code = process.wait()
    finally:
        if process.poll() is None:  # the task was cancelled
            process.terminate()
            process.wait()
    if code:
        raise Unavailable(f"{' '.join(command[3:5])} ended with exit code {code}: {last}")
