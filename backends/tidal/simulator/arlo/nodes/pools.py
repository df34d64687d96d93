"""Nodes and entrances of a run: the instances of a node by runtime, and the dispatcher of an entrance."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidal.arlo.policies import ArloBatch, ArloQuery, PartitionedPolicy
from tidal.arlo.scheduling import Assignment, preferred_nodes


@dataclass(eq=False, slots=True)
class Pool:
    """The instances of one runtime on one node; a call runs on any free one, in the order in which calls reach it.

    Attributes:
        instances: Number of instances. Without one, calls that were sent before run one at a time, as on an instance
            that finishes what it has accepted.
        running: Number of running calls.
        queue: Calls that wait for an instance.
    """

    instances: int
    running: int = 0
    queue: deque[Call] = field(default_factory=deque)

    @property
    def free(self) -> bool:
        """Whether a call can start."""
        return self.running < max(self.instances, 1)


@dataclass(eq=False, slots=True)
class SimulatedNode:
    """A node.

    Attributes:
        index: Index of the node.
        name: Name of the node in tables and plans.
        devices: Number of its devices.
        up: Whether it serves.
        life: Number that changes when it is lost and when it is replaced.
        lost_s: Time of the last loss in seconds.
        pools: Instances by runtime; none while it is lost.
        busy_s: Engine time since the controller's last decision by runtime, in seconds.
    """

    index: int
    name: str
    devices: int
    up: bool = False
    life: int = 0
    lost_s: float = 0.0
    pools: list[Pool] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)

    @property
    def instances(self) -> tuple[int, ...]:
        """Instances by runtime."""
        return tuple(pool.instances for pool in self.pools)

    def start(self, instances: Sequence[int]) -> None:
        """Serve with these instances by runtime, without any call."""
        self.up = True
        self.life += 1
        self.pools = [Pool(count) for count in instances]
        self.busy_s = [0.0] * len(instances)

    def lose(self, now: float) -> None:
        """End all instances with their calls."""
        self.up = False
        self.life += 1
        self.lost_s = now
        self.pools = []


@dataclass(eq=False, slots=True)
class Entrance:
    """The dispatcher of a node at which queries arrive.

    Attributes:
        node: Its node.
        policy: Its policy, over the instances of all nodes.
        life: The node's `life` when it started.
        calls: Calls that it waits for, in the order in which it sent them.
        open: Queries that it has not answered, in the order in which it received them.
        lanes: Node of each lane of another node.
        unreachable: Nodes that it does not use because they do not answer.
        published: Outstanding queries at the last exchange, by the name of the node.
    """

    node: SimulatedNode
    policy: PartitionedPolicy
    life: int
    calls: dict[Call, None] = field(default_factory=dict)
    open: dict[ArloQuery, None] = field(default_factory=dict)
    lanes: dict[int, SimulatedNode] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    published: dict[str, list[int]] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether it still dispatches: its node was not lost since it started."""
        return self.life == self.node.life

    def allocate(
        self, table: Mapping[str, Sequence[int]], assigned: Assignment, nodes: Mapping[str, SimulatedNode]
    ) -> None:
        """Dispatch to its own instances and to those of a table, without nodes that do not answer.

        Args:
            table: Instances by runtime of each node.
            assigned: Nodes of each entrance; equal shares of the queries arrive at these.
            nodes: The nodes by name.
        """
        preferred = preferred_nodes(self.node.name, assigned, list(table))
        others = {name: table[name] for name in preferred if name not in self.unreachable}
        share = 1 / len(assigned) if self.node.name in assigned else 1.0
        self.policy.allocate(self.node.instances, others, share, assigned.get(self.node.name, ()))
        self.lanes = {lane: nodes[name] for lane, name in self.policy.remote_lanes.items()}


@dataclass(eq=False, slots=True)
class Call:
    """A query on its way to an instance, on it, or on its way back.

    Attributes:
        entrance: Entrance that waits for it.
        batch: The batch of its policy, of one query.
        node: Node of the instance.
        life: That node's `life` when the call was sent.
        remote: Whether the node is another one than the entrance's.
        given_up: Whether the entrance no longer waits for it.
        pool: The instances that it waits for or runs on.
    """

    entrance: Entrance
    batch: ArloBatch
    node: SimulatedNode
    life: int
    remote: bool
    given_up: bool = False
    pool: Pool | None = None
