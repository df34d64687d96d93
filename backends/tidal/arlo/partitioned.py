"""Service for partitioned placement: the front of a model whose runtimes are separate Triton models."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from tidal.arlo.cluster import ClusterRunner, RemoteNodes
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.metrics import PartitionedMetrics
from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.runner import BatchRunner
from tidal.arlo.service import ArloService
from tidal.encoder_tasks.cutting import Cutter
from tidal.errors import TidalError, Unavailable
from tidal.repository.allocation import allocation_stamp, usable_allocation
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.text import TextTokenizer

_POLL_INTERVAL_S = 0.25
# Entrances that an error names.
_NAMED = 3


class WatchedAllocation:
    """The instances that a front may use, read from the allocation file when it changes.

    Args:
        context: Context of the front.
        lengths: The runtimes' `max_length` in tokens, ascending.

    Raises:
        InvalidArgument: The allocation cannot be determined.
    """

    def __init__(self, context: ServiceContext, lengths: Sequence[int]) -> None:
        self._folder, self._log = context.model_dir, context.log
        self._lengths = lengths
        self._stamp = allocation_stamp(self._folder)
        self.instances: list[int]
        """Number of usable instances by runtime, at least one of the last if it is an entrance."""
        self.entrance: bool
        """Whether the front accepts queries."""
        self.instances, self.entrance = self._read()

    def refresh(self) -> bool:
        """Read a changed allocation; return whether it differs. An invalid one is logged and ignored."""
        stamp = allocation_stamp(self._folder)
        if stamp == self._stamp:
            return False
        before = self.instances, self.entrance
        try:
            self.instances, self.entrance = self._read()
        except TidalError as error:
            self._log.error(f"the allocation stays at {self.instances}: {error}")
        # The stamp from before the read: a write since then is noticed at the next check.
        self._stamp = stamp
        return before != (self.instances, self.entrance)

    def _read(self) -> tuple[list[int], bool]:
        allocation = usable_allocation(self._folder, self._lengths)
        usable = allocation.serving()
        return [usable[length] for length in self._lengths], allocation.entrance


class PartitionedService:
    """An `ArloService` with a `PartitionedPolicy` whose lanes follow the allocation, checked every 250 ms.

    Lanes of other nodes follow the cluster table, and whether the nodes answer. On a node that is no entrance queries
    are refused, and those accepted before are answered.

    Args:
        context: Context that the service is started with.
        manifest: Manifest of the published version.
        tokenizer: Tokenizer of the version.
        policy: Policy with the allocation's instances, used by this service only.
        runner: Runs batches on the runtimes' models of this server.
        allocation: Allocation, which outlives a failing service.
        cutter: Cuts texts that are too long; None if the tokenizer refuses or truncates them.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not have.
    """

    def __init__(
        self,
        context: ServiceContext,
        manifest: ArloManifest,
        tokenizer: TextTokenizer,
        policy: PartitionedPolicy,
        runner: BatchRunner,
        allocation: WatchedAllocation,
        cutter: Cutter | None = None,
    ) -> None:
        self._policy = policy
        self._allocation = allocation
        self._log = context.log
        lengths = [runtime.max_length for runtime in manifest.runtimes]
        self._metrics = PartitionedMetrics(context.metrics, lengths)
        self._nodes = RemoteNodes(context, lengths)
        self._runner = ClusterRunner(runner, self._nodes, context.model, context.version, manifest)
        self._keeps_longest = False
        self._service = ArloService(context, manifest, tokenizer, policy, self._runner, cutter)
        self._service.adjust(partial(self._update_policy, changed=True))
        self._ending = threading.Event()
        self._watcher = context.start_thread("allocation", self._watch)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Tokenize requests and dispatch their rows."""
        self._service.submit(requests)

    def close(self, timeout_s: float) -> None:
        """Run the waiting queries, then end the threads."""
        self._ending.set()
        self._service.close(timeout_s)
        self._watcher.join(_POLL_INTERVAL_S)
        self._nodes.close()
        self._metrics.clear()

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_INTERVAL_S):
            local, remote = self._allocation.refresh(), self._nodes.refresh()
            self._service.adjust(partial(self._update_policy, changed=local or remote or self._keeps_longest))
            if local:
                self._log.info(f"instances by runtime: {self._allocation.instances}")
            if remote:
                self._log.info(f"instances of other nodes by runtime: {self._nodes.instances or 'none'}")

    def _update_policy(self, *, changed: bool) -> None:
        """Let the policy follow the allocation and the other nodes; no other thread uses it."""
        if changed:
            instances, entrance = self._allocation.instances, self._allocation.entrance
            self._service.refusal = None if entrance else _no_entrance(self._nodes.entrances)
            # Queries that were accepted before may need the longest runtime.
            self._keeps_longest = not entrance and not instances[-1] and any(self._policy.outstanding)
            self._policy.allocate(
                [*instances[:-1], max(instances[-1], self._keeps_longest)],
                self._nodes.instances,
                self._nodes.share,
                self._nodes.assigned,
                accepts=entrance,
            )
            self._runner.remote_lanes = self._policy.remote_lanes
        self._metrics.update(self._policy)


def _no_entrance(entrances: Mapping[str, str]) -> Unavailable:
    """Return the error for a query that arrives at a node which is no entrance.

    Args:
        entrances: `host:port` of the gRPC endpoint of each entrance, by name.
    """
    others = ", ".join(f"{name} at {address}" for name, address in list(entrances.items())[:_NAMED]) or "none is known"
    return Unavailable(
        f"this node is no entrance of its cluster and runs queries of other nodes only; send the request to an "
        f"entrance: {others}"
    )
