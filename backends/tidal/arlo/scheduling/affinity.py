"""Affinity of entrances to nodes: which instances each dispatcher of a cluster uses first.

Arlo has one dispatcher over all instances (§3.4). Several ones that know their own outstanding queries only would use
the same instances first, while others idle. So each node is assigned to one entrance, whose front prefers it among
equally loaded ones: simulated with 4 entrances of 125 nodes at 70 % load, the mean latency is 1.04 times that of one
entrance, and 3.0 times if all prefer the same nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import chain

#: Nodes assigned to each entrance, by its name: its own one first, then in the order in which they are preferred.
Assignment = Mapping[str, Sequence[str]]


def assign_nodes(instances: Mapping[str, Sequence[int]], shares: Mapping[str, float]) -> dict[str, list[str]]:
    """Assign each node to one entrance, in proportion to the entrances' queries for each runtime alike.

    Args:
        instances: Instances by runtime of each node, in the order in which nodes are assigned.
        shares: Share of the queries, or their number, that arrive at each entrance; those with none are no entrances.
            An entrance without instances of its own may be among them.

    Returns:
        Nodes of each entrance.
    """
    entrances = {name: share for name, share in shares.items() if share > 0}
    if not entrances:
        return {}
    total, queries = [sum(column) for column in zip(*instances.values(), strict=True)], sum(entrances.values())
    missing: dict[str, list[float]] = {}  # share of each runtime's instances, beyond what the entrance has
    assigned: dict[str, list[str]] = {}
    for name, share in entrances.items():
        wanted = [share / queries] * len(total)
        missing[name] = _without(wanted, instances[name], total) if name in instances else wanted
        assigned[name] = [name] if name in instances else []
    for name, row in instances.items():
        if name in entrances:
            continue
        entrance = max(missing, key=lambda each: sum(map(operator.mul, row, missing[each])))
        assigned[entrance].append(name)
        missing[entrance] = _without(missing[entrance], row, total)
    return assigned


def preferred_nodes(node: str, assigned: Assignment, nodes: Sequence[str]) -> list[str]:
    """Return the other nodes in the order in which a node's front prefers equally loaded instances of them.

    After the nodes that are assigned to it come those of other entrances, the ones that these use last first. Nodes
    that are equal in this are ordered from its own position on, so that fronts differ.

    Args:
        node: Name of the node.
        assigned: Nodes of each entrance.
        nodes: Names of all nodes.
    """
    own = {name: None for name in assigned.get(node, ()) if name != node}
    used_at = {name: at / len(row) for row in assigned.values() for at, name in enumerate(row)}
    start = nodes.index(node) if node in nodes else 0
    others = [name for name in chain(nodes[start:], nodes[:start]) if name != node and name not in own]
    return [*own, *sorted(others, key=lambda name: -used_at.get(name, 0.0))]


def _without(shares: Sequence[float], row: Sequence[int], total: Sequence[int]) -> list[float]:
    return [share - has / of if of else share for share, has, of in zip(shares, row, total, strict=True)]
