"""A cluster of several nodes on this machine, for the scenario that is about clusters."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from reliability.cluster_load import Answers, ClusterLoad, right_answers
from testing.clusters import LocalCluster, remote_instances, steady
from testing.metrics import published
from testing.serving import tidal
from testing.waiting import until
from tidal.access_log.target import ACCESS_LOG_VARIABLE
from tidal.cluster.local_cluster import local_names
from tidal.repository.allocation import ALLOCATION_FILE, make_allocation, write_allocation
from tidal.repository.names import runtime_model
from tidal.server.local_http import open_url
from tidal.server.state import ServerState

#: The node that fails, and the one whose entrance stays.
LOST, KEPT = "n2", "n1"
_STEADY_S = 120.0


class ClusterUnderTest:
    """A running cluster of nodes that share a partitioned model and serve another model each for itself.

    Clients use two of its entrances.

    Args:
        folder: Folder for its state and files, which must exist.
        repository: Repository with the models; it is copied.
        split: Name of the partitioned model.
        lengths: `max_length` of its runtimes in tokens.
        other: Name of the other model.
        nodes: Number of nodes.

    Attributes:
        commands: Commands of the cluster.
        names: Names of the nodes.
        split: Name of the partitioned model.
        lengths: `max_length` of its runtimes in tokens.
        models: Names of the models that clients send requests to.
        log: Request log of both servers.
        right: Logits of each text by model.
        left: Processes and files that are left after its end.
    """

    def __init__(
        self, folder: Path, repository: Path, split: str, lengths: Sequence[int], other: str, nodes: int = 2
    ) -> None:
        self.names = local_names(nodes)
        self.commands = LocalCluster(folder / "cluster", tidal)
        self.split, self.models = split, (split, other)
        self.log = folder / "requests.jsonl"
        self.commands.environment[ACCESS_LOG_VARIABLE] = str(self.log)
        self.right: Answers = {}
        self.left: list[str] = []
        self.lengths, self._loads, self._name = lengths, 0, folder.name
        self._repository = folder / "models"
        for model in (*self.models, *(runtime_model(split, length) for length in lengths)):
            shutil.copytree(repository / model, self._repository / model, copy_function=os.link)
        # An earlier scenario may have moved instances.
        (self._repository / split / ALLOCATION_FILE).unlink(missing_ok=True)
        write_allocation(self._repository / split, make_allocation(dict.fromkeys(lengths, 1)))

    def start(self) -> None:
        """Start it, and wait until the nodes use each other.

        Raises:
            RuntimeError: They do not in time.
        """
        devices = str(len(self.lengths))
        self.commands.run("up", "--local", str(len(self.names)), str(self._repository), "--devices", devices)
        if not until(self.steady, _STEADY_S):
            raise RuntimeError(f"the nodes do not use each other: {self.commands.status()}")
        self.right = right_answers(self.server(KEPT).grpc, self.models)

    def stop(self) -> None:
        """End it, and record what is left."""
        self.left = self.commands.stop()

    def server(self, node: str) -> ServerState:
        """Return the state of a node's server."""
        return self.commands.server(node)

    def load(self) -> ClusterLoad:
        """Return a load on both entrances, not yet begun."""
        self._loads += 1
        servers = [self.server(KEPT), self.server(LOST)]
        grpc, http = [each.grpc for each in servers], [each.http for each in servers]
        return ClusterLoad(grpc, http, self.right, f"{self._name}-{self._loads}")

    def steady(self) -> bool:
        """Whether all nodes serve by a plan that is done, and their fronts use each other's instances."""
        pairs = [(node, other) for node in self.names for other in self.names if node != other]
        used = {self.used(node, other) for node, other in pairs}
        return used == {len(self.lengths)} and steady(self.status(), self.split, self.names)

    def used(self, node: str, other: str) -> int:
        """Return how many instances of another node a node's front uses; -1 while its server does not answer."""
        try:
            return int(remote_instances(self.server(node), self.split, node=other))
        except (OSError, ValueError):
            return -1

    def status(self) -> dict[str, Any]:
        """Return what the controller knows; no nodes while it does not answer."""
        outcome = self.commands.outcome("status", "--json")
        return json.loads(outcome.stdout) if not outcome.returncode else {"controller": {}, "nodes": [], "plans": {}}

    def crossed(self, requests: int) -> int:
        """Send requests to the entrance that stays; return how many of their queries ran on other nodes.

        Args:
            requests: Number of requests.
        """
        kept, before = self.server(KEPT), self._ran()
        with ClusterLoad([kept.grpc], [kept.http], self.right, f"{self._name}-crossed") as load:
            load.wait_for(requests)
        return self._ran() - before

    def _ran(self) -> int:
        """Return how many queries the instances of the nodes other than the one that stays have run."""
        models, total = [runtime_model(self.split, length) for length in self.lengths], 0.0
        for name in self.names:
            if name != KEPT:
                with open_url(f"http://{self.server(name).metrics}/metrics", 10) as response:
                    page = str(response.read().decode())
                total += sum(published(page, "nv_inference_count", model=model) for model in models)
        return int(total)


@contextmanager
def cluster_under_test(
    folder: Path, repository: Path, split: str, lengths: Sequence[int], other: str, nodes: int = 2
) -> Iterator[ClusterUnderTest]:
    """Run a cluster until the block ends.

    Args:
        folder: Folder to make its own folder in.
        repository: Repository with the models.
        split: Name of the partitioned model.
        lengths: `max_length` of its runtimes in tokens.
        other: Name of the other model.
        nodes: Number of nodes.
    """
    running = ClusterUnderTest(Path(mkdtemp(prefix="cluster-", dir=folder)), repository, split, lengths, other, nodes)
    try:
        running.start()
        yield running
    finally:
        running.stop()
