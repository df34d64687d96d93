"""Settings of simulated nodes, and when they are lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tidal.arlo.policies import SERVED_DEPTH, CompletionRule, DispatchRule
from tidal.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class NodeOutage:
    """A node that is lost, and the one that replaces it.

    Attributes:
        node: Index of the node.
        at_s: Time of the loss, in seconds from the start; 0 for a node that is started with the workload.
        start_s: Start-up time of the replacement: from the loss until it serves, in seconds; infinite: there is none.
    """

    node: int
    at_s: float
    start_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < math.inf:
            raise InvalidArgument(f"at_s of an outage must be a finite number of at least 0 seconds, got {self.at_s:g}")
        if not self.start_s > 0:
            raise InvalidArgument(f"start_s of an outage must be above 0 seconds, got {self.start_s:g}")

    @property
    def back_s(self) -> float:
        """Time when the replacement serves, in seconds."""
        return self.at_s + self.start_s


@dataclass(frozen=True, slots=True)
class SimulatedNodes:
    """Nodes of a simulated cluster.

    Attributes:
        devices: Number of devices of each node, each of which holds one instance.
        entrances: Number of nodes at which queries arrive, from the first one on; each query goes to one at random.
        all_entrances: Whether the other nodes are entrances too, which keep an instance of the longest runtime although
            no query arrives there.
        exchange_s: Time between two exchanges of what the entrances have outstanding, in seconds, so what they know of
            each other's queries is up to twice as old; None: an entrance knows its own queries only, as when serving.
        affinity: Whether nodes are assigned to the entrances, as when serving.
        rule: Rule by which entrances choose a runtime.
        depth: Queries that an entrance gives an instance at a time.
        hop_s: Time of a query or an answer to another node, in seconds.
        notice_s: Time until an entrance, or a client, notices that a node was lost, in seconds.
        lost_after_s: Time until the controller plans without a lost node, in seconds. It decides nothing until then.
        replacement_s: Time that a device takes to load another runtime, in seconds.
        outages: Lost nodes; those of one node must not overlap.

    Raises:
        InvalidArgument: A value is out of range, or no entrance would be left.
    """

    devices: tuple[int, ...]
    entrances: int = 1
    all_entrances: bool = True
    exchange_s: float | None = None
    affinity: bool = True
    rule: DispatchRule = field(default_factory=CompletionRule)
    depth: int = SERVED_DEPTH
    hop_s: float = 0.0005
    notice_s: float = 0.05
    lost_after_s: float = 15.0
    replacement_s: float = 1.0
    outages: tuple[NodeOutage, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices or min(self.devices) < 1:
            raise InvalidArgument(f"devices must be one or more numbers of at least 1, got {self.devices}")
        if not 1 <= self.entrances <= len(self.devices):
            raise InvalidArgument(
                f"entrances must be between 1 and the number of nodes, {len(self.devices)}, got {self.entrances}"
            )
        for name in ("hop_s", "notice_s", "lost_after_s", "replacement_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(
                    f"{name} must be a finite number of at least 0 seconds, got {getattr(self, name)}"
                )
        if self.depth < 1:
            raise InvalidArgument(f"depth must be at least 1, got {self.depth}")
        if self.exchange_s is not None and not 0 < self.exchange_s < math.inf:
            raise InvalidArgument(f"exchange_s must be a positive, finite number of seconds, got {self.exchange_s:g}")
        for each in self.outages:
            if not 0 <= each.node < len(self.devices):
                raise InvalidArgument(f"node {each.node} of an outage is not one of the {len(self.devices)} nodes")
        by_node = sorted(self.outages, key=lambda each: (each.node, each.at_s))
        for one, other in pairwise(by_node):
            if one.node == other.node and other.at_s <= one.back_s:
                raise InvalidArgument(f"outages of node {one.node} overlap: at {one.at_s:g} and at {other.at_s:g} s")
        gone = {each.node for each in self.outages if each.back_s == math.inf}
        if gone.issuperset(range(self.entrances)):
            raise InvalidArgument("every entrance is lost for good; expected at least 1 that stays or is replaced")


def random_outages(
    nodes: Sequence[int], seconds: float, *, every_s: float, start_s: float, seed: int = 0
) -> tuple[NodeOutage, ...]:
    """Return outages with exponentially distributed times between those of a node.

    Args:
        nodes: Indices of the nodes that fail.
        seconds: Time in which they fail, in seconds.
        every_s: Mean time until a serving node fails, in seconds.
        start_s: Start-up time of a replacement, in seconds.
        seed: Seed; equal seeds give equal outages.
    """
    if not 0 < every_s < math.inf or not 0 < start_s < math.inf:
        raise InvalidArgument(f"every_s and start_s must be positive, finite seconds, got {every_s:g} and {start_s:g}")
    rng = np.random.default_rng(seed)
    found = []
    for node in nodes:
        at = float(rng.exponential(every_s))
        while at < seconds:
            found.append(NodeOutage(node, at, start_s))
            at += start_s + float(rng.exponential(every_s))
    return tuple(sorted(found, key=lambda each: (each.at_s, each.node)))
