"""The controller of simulated nodes: what it knows of them, when it plans, and how it changes them (Arlo §3.3, §4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tidal.arlo.scheduling import (
    Assignment,
    ClusterNode,
    NodeCounts,
    RuntimeProfile,
    assign_nodes,
    demand_by_runtime,
    even_allocation,
    plan_cluster,
)
from tidal.errors import InvalidArgument
from tidal.simulator.arlo.nodes.pools import SimulatedNode
from tidal.simulator.arlo.nodes.result import PlanRecord
from tidal.simulator.arlo.nodes.settings import SimulatedNodes
from tidal.simulator.arlo.service_times import ServiceTimes
from tidal.simulator.arlo.workload import LengthHistory
from tidal.simulator.requests import Ints


class Controller:
    """Decides once per second as the controller of a cluster does: by `plan_cluster`, a few changes at a time.

    It plans after a period, and when a node joins or is lost. While a node does not answer that it has not given up,
    and while devices load runtimes, it decides nothing.

    Args:
        nodes: The nodes.
        settings: Their settings.
        times: Latencies of the runtimes.
        slo_s: Latency objective in seconds.
        period_s: Time between two plans in seconds, unless a node requires one.
        min_gain: Share of the mean latency that a change must save.
        publish: Called after each change of `table` or of a node's instances.
        schedule: Called with the time at which `finish_stage` is to be called.
    """

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        settings: SimulatedNodes,
        times: ServiceTimes,
        slo_s: float,
        *,
        period_s: float,
        min_gain: float,
        publish: Callable[[], None],
        schedule: Callable[[float], None],
    ) -> None:
        if not 1 <= period_s < math.inf:
            raise InvalidArgument(f"the allocation period must be at least 1 s, got {period_s:g}")
        if not 0 <= min_gain < 1:
            raise InvalidArgument(f"the minimum gain must be at least 0 and less than 1, got {min_gain:g}")
        self.table: dict[str, tuple[int, ...]] = {}
        """Instances by runtime of each node that entrances may use."""
        self.assigned: Assignment = {}
        """Nodes of each entrance, as of the last plan or change of the nodes."""
        self.plans: list[PlanRecord] = []
        self._nodes, self._settings = nodes, settings
        self._max_lengths, self._slo_s = times.max_lengths, slo_s
        self._period_s, self._min_gain = period_s, min_gain
        self._publish, self._schedule = publish, schedule
        self._profiles = tuple(RuntimeProfile.from_service(each, slo_s, period_s) for each in times.static_s)
        self._seen = np.zeros(times.longest + 1, np.int64)
        self._since = 0.0
        self._known: dict[str, int] = {}  # `life` of each node that it plans with
        self._must_plan = False
        # The change in progress: its nodes with their `life`, and the placements before and after the present stage.
        self._changing: list[tuple[SimulatedNode, int]] = []
        self._stages: Iterator[NodeCounts] = iter(())
        self._before: NodeCounts = ()
        self._after: NodeCounts | None = None

    def begin(self, history: LengthHistory | None) -> None:
        """Start the nodes with the best instances for past queries, or with equal numbers if there are none.

        Args:
            history: Past queries; None: unknown.
        """
        up = [node for node in self._nodes if node.up]
        rows = [even_allocation(node.devices, len(self._max_lengths)) for node in up]
        if history is not None and any(history.by_length.values()) and up:
            demand = demand_by_runtime(
                history.by_length, self._max_lengths, observed_s=history.seconds, slo_s=self._slo_s
            )
            none = (0,) * len(self._max_lengths)
            given = [ClusterNode(node.name, node.devices, none, none, self._is_entrance(node)) for node in up]
            rows = list(plan_cluster(given, self._profiles, demand, self._min_gain).after)
        for node, row in zip(up, rows, strict=True):
            node.start(row)
            self._join(node)
        self._assign()

    def knows(self, node: SimulatedNode) -> bool:
        """Whether it knows that the node serves, and with which instances."""
        return self._known.get(node.name) == node.life

    def observe(self, lengths: Ints) -> None:
        """Count queries by their lengths in tokens."""
        if len(lengths):
            self._seen += np.bincount(lengths, minlength=len(self._seen))

    def tick(self, now: float) -> None:
        """Read the nodes, and plan if there is something to decide."""
        if self._read(now):
            self._must_plan = True
            self._assign()
            self._publish()
        lost = any(not node.up for node in self._nodes if node.name in self._known)
        if self._after is not None or lost or not self._known:
            return
        if self._must_plan or now - self._since >= self._period_s:
            self._decide(now)
            self._next_stage(now)

    def finish_stage(self, now: float) -> None:
        """Let the instances of the present stage serve, and begin the next one.

        The rest of a plan is dropped if one of its nodes was lost.
        """
        assert self._after is not None
        for (node, life), row in zip(self._changing, self._after, strict=True):
            if node.life == life:
                self._set(node, row)
        self._before, self._after = self._after, None
        self._assign()
        self._publish()
        if all(node.life == life for node, life in self._changing):
            self._next_stage(now)
        else:
            self._must_plan = True

    def _read(self, now: float) -> bool:
        """Return whether a node has joined, or one is given up."""
        changed = False
        for node in self._nodes:
            if node.up and not self.knows(node):
                self._join(node)
                changed = True
            elif not node.up and node.name in self._known and now >= node.lost_s + self._settings.lost_after_s:
                del self._known[node.name], self.table[node.name]
                changed = True
        return changed

    def _join(self, node: SimulatedNode) -> None:
        self._known[node.name] = node.life
        self.table[node.name] = node.instances

    def _assign(self) -> None:
        if self._settings.affinity:
            entrances = {node.name: 1.0 for node in self._nodes[: self._settings.entrances] if self.knows(node)}
            self.assigned = assign_nodes(dict(sorted(self.table.items())), entrances)

    def _decide(self, now: float) -> None:
        members = [node for node in self._nodes if node.name in self._known]
        demand: tuple[float, ...] = (0.0,) * len(self._max_lengths)
        if self._seen.any():
            by_length = {int(length): int(self._seen[length]) for length in np.flatnonzero(self._seen)}
            observed_s = now - self._since
            demand = demand_by_runtime(by_length, self._max_lengths, observed_s=observed_s, slo_s=self._slo_s)
        given = [
            ClusterNode(node.name, node.devices, node.instances, tuple(node.busy_s), self._is_entrance(node))
            for node in members
        ]
        plan = plan_cluster(given, self._profiles, demand, self._min_gain)
        self.plans.append(PlanRecord(now, plan.reason, plan.moves))
        self._changing = [(node, node.life) for node in members]
        self._before, self._stages = plan.before, plan.stages()
        self._since, self._must_plan = now, False
        self._seen[:] = 0
        for node in members:
            node.busy_s = [0.0] * len(node.busy_s)

    def _is_entrance(self, node: SimulatedNode) -> bool:
        return self._settings.all_entrances or node.index < self._settings.entrances

    def _next_stage(self, now: float) -> None:
        """End the instances that the next stage replaces; their devices load the others meanwhile."""
        self._after = next(self._stages, None)
        if self._after is None:
            return
        for (node, _), before, after in zip(self._changing, self._before, self._after, strict=True):
            if before != after:
                self._set(node, tuple(map(min, before, after)))
        self._publish()
        self._schedule(now + self._settings.replacement_s)

    def _set(self, node: SimulatedNode, instances: tuple[int, ...]) -> None:
        for pool, count in zip(node.pools, instances, strict=True):
            pool.instances = count
        self.table[node.name] = instances
