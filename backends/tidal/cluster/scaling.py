"""How many instances each model of a cluster uses, and how many nodes they need (Arlo §4). Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidal.arlo.scheduling import Autoscaler, Scaling
from tidal.controller.counts import ModelCounts
from tidal.errors import InvalidArgument

# A node is released when it was not required for as many periods.
CALM_PERIODS = 3


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Bounds of scaling.

    Args:
        min_instances: Minimum number of instances per model. Each node that serves a model keeps one in any case.
        max_instances: Maximum number of instances per model; None: as many as the devices hold.
        min_nodes: Number of nodes below which none is released.
        max_nodes: Number of nodes above which none is requested; None: nodes are neither requested nor released.

    Raises:
        InvalidArgument: A minimum is not between 1 and its maximum; the message names the option.
    """

    min_instances: int = 1
    max_instances: int | None = None
    min_nodes: int = 1
    max_nodes: int | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("instances", self.min_instances, self.max_instances),
            ("nodes", self.min_nodes, self.max_nodes),
        ):
            if least < 1:
                raise InvalidArgument(f"--min-{name} must be at least 1, got {least}")
            if most is not None and most < least:
                raise InvalidArgument(f"--max-{name} must be at least {least}, the minimum, got {most}")


class ModelScaler:
    """The number of instances of one model: that of `Autoscaler`, with devices that may be too few.

    Args:
        slo_s: Latency objective, in seconds.
        settings: Bounds of scaling.
        wanted: Number of instances to begin with.

    Attributes:
        wanted: Number of instances that the latency requires: one more than the devices hold if it needs a node, one
            fewer than nodes if it needs one node less.
        reason: Rule that changed it last, as a clause.
    """

    def __init__(self, slo_s: float, settings: ScalingSettings, wanted: int) -> None:
        self.wanted, self.reason = wanted, ""
        self._slo_s, self._settings = slo_s, settings
        self._bounds: tuple[int, int] | None = None
        self._scaler: Autoscaler | None = None

    def observe(self, counts: ModelCounts) -> None:
        """Add the counts of a node since its last reading."""
        if self._scaler is not None:
            self._scaler.observe(counts.requests, counts.slow, counts.critical)

    def decide(self, now: float, devices: int, nodes: int, *, more_nodes: bool) -> int:
        """Change `wanted` by the rules, and return the number of instances to use now (G). Call it about once a second.

        Args:
            now: Current time on the caller's clock, in seconds.
            devices: Instances that the devices of nodes that do not drain hold.
            nodes: Number of these nodes, each of which keeps an instance.
            more_nodes: Whether another node may be used.
        """
        most = self._settings.max_instances
        lowest = max(self._settings.min_instances, nodes - 1)
        highest = devices + more_nodes if most is None else min(devices + more_nodes, most)
        if self._bounds != (lowest, max(lowest, highest)):
            self._bounds = lowest, max(lowest, highest)
            self.changed(now)
        if self.wanted < lowest:
            self._change(lowest, f"{self.wanted} instances are below the minimum of {lowest}")
        elif most is not None and self.wanted > max(lowest, most):
            self._change(max(lowest, most), f"{self.wanted} instances are above the maximum of {max(lowest, most)}")
        decision = self._scaler.decide(now, self.wanted) if self._scaler is not None else None
        if decision is Scaling.ADD:
            self._change(min(max(self.wanted, nodes) + 1, self._bounds[1]), decision.reason)
        elif decision is Scaling.RELEASE:
            self._change(max(lowest, min(self.wanted - 1, devices)), decision.reason)
        return max(nodes, min(self.wanted, devices))

    def changed(self, now: float) -> None:
        """Restart observation after a change of the instances, since earlier latencies no longer apply."""
        lowest, highest = self._bounds or (1, 1)
        self._scaler = Autoscaler(self._slo_s, min_gpus=lowest, max_gpus=highest, now=now) if lowest < highest else None

    def _change(self, wanted: int, reason: str) -> None:
        self.wanted, self.reason = wanted, reason


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node, as scaling sees it.

    Attributes:
        devices: Instances that its devices hold beside those of other models, by model.
        instances: Present instances, by model.
        busy: Instances that compute, on average.
        draining: Whether it drains.
        moving: Whether it drains and its instances have not moved yet.
        released: Whether it drains because it is not required.
    """

    devices: Mapping[str, int]
    instances: Mapping[str, int]
    busy: float = 0.0
    draining: bool = False
    moving: bool = False
    released: bool = False

    @property
    def spare(self) -> int:
        """Instances of any of its models that it can hold in addition."""
        return max(0, min(count - self.instances[model] for model, count in self.devices.items()))


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A decision about the number of nodes.

    Attributes:
        wanted: Number of nodes to use.
        reason: Rule that decided, as a clause; empty if the present nodes are the wanted ones.
        use: Node to use again; None for none.
        release: Node to drain; None for none.
    """

    wanted: int
    reason: str = ""
    use: str | None = None
    release: str | None = None


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What scaling has decided.

    Attributes:
        models: Number of instances that each model is to have.
        nodes: Last decision about the nodes; None where they are not scaled.
    """

    models: dict[str, int]
    nodes: NodePlan | None


class NodeScaler:
    """The number of nodes: more where a model lacks devices, one fewer where all instances fit into the others.

    Args:
        min_nodes: Number of nodes below which none is released.
        max_nodes: Number of nodes above which none is requested.
        calm_s: Time for which a node must not be required before it is released, in seconds.
    """

    def __init__(self, min_nodes: int, max_nodes: int, calm_s: float) -> None:
        self._min_nodes, self._max_nodes, self._calm_s = min_nodes, max_nodes, calm_s
        self._calm_since: float | None = None

    def may_grow(self, nodes: Mapping[str, NodeUse]) -> bool:
        """Return whether another node may be used.

        Args:
            nodes: The nodes by name.
        """
        return len(_active(nodes)) < self._max_nodes

    def decide(self, now: float, nodes: Mapping[str, NodeUse], wanted: Mapping[str, int]) -> NodePlan:
        """Return the decision for now. Call it about once a second, while all instances are as planned.

        Args:
            now: Current time on the caller's clock, in seconds.
            nodes: The nodes by name.
            wanted: Number of instances that each model is to have.
        """
        active = _active(nodes)
        lacking = _lacking(active, wanted)
        if lacking is not None or len(active) < self._min_nodes:
            self._calm_since = None
            more, reason = lacking or (0, f"the minimum is {self._min_nodes} nodes")
            target = max(min(len(active) + more, self._max_nodes), self._min_nodes, len(active))
            if target == len(active):
                return NodePlan(target, f"{reason}; the maximum is {self._max_nodes} nodes")
            return NodePlan(target, reason, use=next((name for name in sorted(nodes) if nodes[name].released), None))
        candidate = self._candidate(active, wanted)
        if candidate is None or any(node.moving for node in nodes.values()):
            self._calm_since = None
            return NodePlan(len(active))
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self._calm_s:
            return NodePlan(len(active))
        self._calm_since = None
        reason = f"one node fewer holds all instances, for {self._calm_s:g} s"
        return NodePlan(len(active) - 1, reason, release=candidate)

    def _candidate(self, active: Mapping[str, NodeUse], wanted: Mapping[str, int]) -> str | None:
        """Return the least loaded node without which all instances fit into the others; None if there is none."""
        if len(active) <= self._min_nodes:
            return None
        fitting = [name for name in active if _fit_elsewhere(active, name, wanted)]
        return min(fitting, key=lambda name: (active[name].busy, name), default=None)


def _active(nodes: Mapping[str, NodeUse]) -> dict[str, NodeUse]:
    return {name: node for name, node in nodes.items() if node.devices and not node.draining}


def _lacking(active: Mapping[str, NodeUse], wanted: Mapping[str, int]) -> tuple[int, str] | None:
    """Return the number of nodes that the instances lack, with the reason; None if they lack none."""
    found: tuple[int, str] | None = None
    for model, count in sorted(wanted.items()):
        devices = [node.devices[model] for node in active.values() if model in node.devices]
        short = count - sum(devices)
        if devices and short > 0:
            more = -(-short // max(devices))
            if found is None or more > found[0]:
                found = more, f"'{model}' needs {count} instances, and the devices of the nodes hold {sum(devices)}"
    return found


def _fit_elsewhere(active: Mapping[str, NodeUse], name: str, wanted: Mapping[str, int]) -> bool:
    """Whether all instances fit into the nodes other than one: those that lack there into their free devices."""
    others = [node for other, node in active.items() if other != name]
    lacking = 0
    for model, present in active[name].instances.items():
        kept = [node.instances[model] for node in others if model in node.instances]
        if not kept:
            return False
        lacking += max(0, wanted.get(model, present + sum(kept)) - sum(kept))
    return lacking <= sum(node.spare for node in others)
