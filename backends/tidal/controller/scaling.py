"""How many instances each model uses, and how many nodes they need (Arlo §4). Pure: no clock, no I/O."""

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
        min_instances: Minimum number of instances per model, of which each entrance that serves a model keeps one in
            any case; None: as many as the devices hold, or `max_instances` if that is lower.
        max_instances: Maximum number of instances per model; None: as many as the devices hold.
        min_nodes: Number of nodes below which none is released.
        max_nodes: Number of nodes above which none is requested; None: nodes are neither requested nor released.
        only_node: Whether there is one node and never another: then the bounds apply where they exceed what its devices
            hold, and instances that others add or end by hand within the bounds are kept.

    Raises:
        InvalidArgument: A minimum is not between 1 and its maximum; the message names the option.
    """

    min_instances: int | None = 1
    max_instances: int | None = None
    min_nodes: int = 1
    max_nodes: int | None = None
    only_node: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("instances", self.min_instances, self.max_instances),
            ("nodes", self.min_nodes, self.max_nodes),
        ):
            for bound, value in (("min", least), ("max", most)):
                if value is not None and value < 1:
                    raise InvalidArgument(f"--{bound}-{name} must be at least 1, got {value}")
            if least is not None and most is not None and least > most:
                raise InvalidArgument(f"--min-{name} {least} exceeds --max-{name} {most}")


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

    def decide(self, now: float, devices: int, entrances: int, *, more_nodes: bool) -> int:
        """Change `wanted` by the rules, and return the number of instances to use now (G). Call it about once a second.

        Args:
            now: Current time on the caller's clock, in seconds.
            devices: Instances that the devices of nodes that do not drain hold.
            entrances: Number of entrances that do not drain, each of which keeps an instance.
            more_nodes: Whether another node may be used.
        """
        only = self._settings.only_node
        lowest, highest = self._bounds_of(devices, entrances, more_nodes)
        if self._bounds != (lowest, highest):
            self._bounds = lowest, highest
            self.changed(now)
        least, most = self._settings.min_instances, self._settings.max_instances
        if self.wanted < lowest:
            bound = f"the {lowest} that devices hold" if least is None else f"the minimum of {lowest}"
            self._change(lowest, f"{self.wanted} instances are below {bound}")
        elif self.wanted > highest and (only or (most is not None and self.wanted > max(lowest, most))):
            at_most = highest if most is None else max(lowest, most)
            bound = f"the {at_most} that devices hold" if most is None else f"the maximum of {at_most}"
            self._change(at_most, f"{self.wanted} instances are above {bound}")
        # The most that can be used now.
        usable = highest if only else devices
        decision = self._scaler.decide(now, self.wanted) if self._scaler is not None else None
        if decision is Scaling.ADD:
            self._change(min(max(self.wanted, entrances) + 1, highest), decision.reason)
        elif decision is Scaling.RELEASE:
            self._change(max(lowest, min(self.wanted - 1, usable)), decision.reason)
        return max(entrances, min(self.wanted, usable))

    def changed(self, now: float) -> None:
        """Restart observation after a change of the instances, since earlier latencies no longer apply."""
        lowest, highest = self._bounds or (1, 1)
        self._scaler = Autoscaler(self._slo_s, min_gpus=lowest, max_gpus=highest, now=now) if lowest < highest else None

    def _bounds_of(self, devices: int, entrances: int, more_nodes: bool) -> tuple[int, int]:
        """Return the minimum and the maximum of `wanted`."""
        least, most = self._settings.min_instances, self._settings.max_instances
        if least is None:
            least = devices if most is None else min(devices, most)
        lowest, highest = max(least, entrances - 1), devices + more_nodes
        if most is not None:
            highest = most if self._settings.only_node else min(highest, most)
        return lowest, max(lowest, highest)

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
        entrance: Whether queries may arrive at it.
    """

    devices: Mapping[str, int]
    instances: Mapping[str, int]
    busy: float = 0.0
    draining: bool = False
    moving: bool = False
    released: bool = False
    entrance: bool = True

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
        fitting = [
            name for name in active if _entrance_elsewhere(active, name) and _fit_elsewhere(active, name, wanted)
        ]
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


def _entrance_elsewhere(active: Mapping[str, NodeUse], name: str) -> bool:
    """Whether queries may arrive at a node other than one."""
    return any(node.entrance for other, node in active.items() if other != name)


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
