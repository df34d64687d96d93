"""Placement of an allocation on the devices of several nodes, with the fewest and least loaded moves (Arlo §4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidal.arlo.scheduling.problem import Ints
from tidal.arlo.scheduling.scaling import InstanceLoad
from tidal.errors import InvalidArgument

NodeCounts = tuple[tuple[int, ...], ...]
"""Instances by node and runtime."""

# Loads are rounded to multiples of this, so that equal sums compare equal.
_GRAIN = 2.0**-20
_MAX_LOAD = 2.0**32
_NEVER = 1 << 62


def place(wanted: Sequence[int], devices: Sequence[int], present: Sequence[InstanceLoad]) -> NodeCounts:
    """Return the instances by node and runtime that change the fewest present instances, and the least loaded ones.

    A device holds one instance, and an instance does not move between nodes: it ends on one and another one starts.
    So as many present instances as possible are kept, and among all such choices the most loaded ones: a maximum flow
    of minimum cost from runtimes to nodes. It matters which are kept only where a runtime has more instances than
    wanted, or a node has more than devices. The others start on free devices, on the node with the fewest instances of
    their runtime, so that the loss of a node costs each runtime little. Ties go to the lower number.

    Args:
        wanted: Instances by runtime (N_i), [runtimes].
        devices: Instances that each node can hold, [nodes].
        present: Present instances with their loads.

    Raises:
        InvalidArgument: There are fewer devices than wanted instances, a number is negative, or a present instance has
            an unknown runtime or node.
    """
    _check(wanted, devices, present)
    cells = _Cells(len(devices), len(wanted), present)
    rows, columns = np.asarray(devices, np.int64), np.asarray(wanted, np.int64)
    while _keep_one_more(cells, rows, columns):
        pass
    counts = cells.kept
    free, lacking = rows - counts.sum(axis=1), columns - counts.sum(axis=0)
    for runtime in range(len(wanted) - 1, -1, -1):  # long runtimes first, because they serve all lengths
        for _ in range(int(lacking[runtime])):
            node = int(np.where(free > 0, counts[:, runtime], _NEVER).argmin())
            counts[node, runtime] += 1
            free[node] -= 1
    return tuple(tuple(row) for row in counts.tolist())


class _Cells:
    """Instances by node and runtime: how many are kept, and the cost of keeping one more or one less.

    The cost of an instance is the highest load of all minus its own, so that it is not negative. Each cell keeps its
    most loaded instances first, so its costs ascend.
    """

    def __init__(self, nodes: int, runtimes: int, present: Sequence[InstanceLoad]) -> None:
        loads = [round(each.load / _GRAIN) for each in present]
        highest = max(loads, default=0)
        costs: dict[tuple[int, int], list[int]] = {}
        for each, load in zip(present, loads, strict=True):
            costs.setdefault((each.node, each.runtime), []).append(highest - load)
        self._costs = {cell: sorted(of_cell) for cell, of_cell in costs.items()}
        self.kept: Ints = np.zeros((nodes, runtimes), np.int64)
        self.next: Ints = np.full((nodes, runtimes), _NEVER)
        """Cost of keeping one more; `_NEVER` where all are kept."""
        self.last: Ints = np.full((nodes, runtimes), -_NEVER)
        """Cost of the one that was kept last; -`_NEVER` where none is."""
        for node, runtime in self._costs:
            self.change(node, runtime, 0)

    def change(self, node: int, runtime: int, by: int) -> None:
        """Keep one more instance, or one less."""
        self.kept[node, runtime] += by
        kept, costs = int(self.kept[node, runtime]), self._costs[node, runtime]
        self.next[node, runtime] = costs[kept] if kept < len(costs) else _NEVER
        self.last[node, runtime] = costs[kept - 1] if kept else -_NEVER


def _keep_one_more(cells: _Cells, devices: Ints, wanted: Ints) -> bool:
    """Keep one more instance at the lowest cost, if need be by exchanging others; return whether that is possible.

    The shortest augmenting path from a runtime that lacks instances to a node with a free device, by Bellman-Ford: a
    path keeps an instance of a runtime on a node, or gives up one on a node for another of the same runtime elsewhere.
    """
    nodes, runtimes = cells.kept.shape
    to_runtime: Ints = np.where(cells.kept.sum(axis=0) < wanted, 0, _NEVER)
    from_runtime = np.zeros(nodes, np.int64)
    from_node = np.full(runtimes, -1)
    to_node: Ints = np.full(nodes, _NEVER)
    while True:
        cost = _sum(to_runtime[None, :], cells.next)
        better = cost.min(axis=1) < to_node
        from_runtime[better] = cost.argmin(axis=1)[better]
        to_node[better] = cost.min(axis=1)[better]
        cost = np.where(cells.last < 0, _NEVER, to_node[:, None] - np.maximum(cells.last, 0))
        cost = np.where(to_node[:, None] >= _NEVER, _NEVER, cost)
        better = cost.min(axis=0) < to_runtime
        if not better.any():
            break
        from_node[better] = cost.argmin(axis=0)[better]
        to_runtime[better] = cost.min(axis=0)[better]
    ends = np.where(cells.kept.sum(axis=1) < devices, to_node, _NEVER)
    node = int(ends.argmin())
    if ends[node] >= _NEVER:
        return False
    while True:
        runtime = int(from_runtime[node])
        cells.change(node, runtime, 1)
        node = int(from_node[runtime])
        if node < 0:
            return True
        cells.change(node, runtime, -1)


def _sum(one: Ints, other: Ints) -> Ints:
    """Return the sums of costs; `_NEVER` where one of them is."""
    total: npt.NDArray[np.int64] = np.where((one >= _NEVER) | (other >= _NEVER), _NEVER, one + other)
    return total


def _check(wanted: Sequence[int], devices: Sequence[int], present: Sequence[InstanceLoad]) -> None:
    if min(wanted, default=0) < 0 or min(devices, default=0) < 0:
        raise InvalidArgument(f"counts must not be negative, got {tuple(wanted)} and {tuple(devices)}")
    if sum(wanted) > sum(devices):
        raise InvalidArgument(f"{sum(wanted)} instances need as many devices, got {sum(devices)}")
    for each in present:
        if not (0 <= each.node < len(devices) and 0 <= each.runtime < len(wanted)):
            raise InvalidArgument(
                f"an instance has node {each.node} and runtime {each.runtime}; there are {len(devices)} nodes and "
                f"{len(wanted)} runtimes"
            )
        if not 0 <= each.load <= _MAX_LOAD:  # also refuses NaN
            raise InvalidArgument(f"a load must be between 0 and 2^32, got {each.load}")
