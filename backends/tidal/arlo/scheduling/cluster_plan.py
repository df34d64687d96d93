"""The Runtime Scheduler's decision for a cluster: instances by node and runtime (Arlo §3.3, §4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidal.arlo.scheduling.placement import NodeCounts, place
from tidal.arlo.scheduling.problem import AllocationProblem, RuntimeProfile
from tidal.arlo.scheduling.reallocation import MIN_GAIN, reallocate, stages
from tidal.arlo.scheduling.scaling import InstanceLoad
from tidal.arlo.scheduling.solution import Solution, solve
from tidal.errors import InvalidArgument

_ENTRANCES = "every entrance needs an instance of the longest runtime"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster, as the decision about one model sees it.

    Attributes:
        name: Name of the node.
        devices: Number of instances that its devices can hold.
        instances: Present instances by runtime, [runtimes].
        busy_s: Engine time by runtime, summed over the node's instances, in seconds, [runtimes].
        entrance: Whether queries arrive at the node: it then keeps an instance of the longest runtime, which serves
            them where all other nodes are lost.
        draining: Whether its instances have to move to other nodes.
    """

    name: str
    devices: int
    instances: tuple[int, ...]
    busy_s: tuple[float, ...]
    entrance: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A decision about a cluster and its reason.

    Attributes:
        nodes: The nodes.
        before: Present instances by node and runtime.
        after: Instances by node and runtime to change to.
        reason: Rule that decided, as a clause.
        demand: Queries per SLO period by runtime (Q_i); empty if the decision does not use it.
        best: Best counts by runtime; empty if the decision does not use the demand.
        mean_before_s: Predicted mean latency with the present counts, in seconds; None if not predicted.
        mean_best_s: Predicted mean latency with the best counts, in seconds; None if not predicted.
        shortfall: Sentence about the devices that the SLO lacks; None if it lacks none.
        instances_short: Additional instances that the SLO requires.
    """

    nodes: tuple[ClusterNode, ...]
    before: NodeCounts
    after: NodeCounts
    reason: str
    demand: tuple[float, ...] = ()
    best: tuple[int, ...] = ()
    mean_before_s: float | None = None
    mean_best_s: float | None = None
    shortfall: str | None = None
    instances_short: int = 0

    @property
    def moves(self) -> int:
        """Instances that end plus instances that start."""
        rows = zip(self.before, self.after, strict=True)
        return sum(abs(a - b) for before, after in rows for a, b in zip(before, after, strict=True))

    def stages(self) -> Iterator[NodeCounts]:
        """Yield the placements to change to one after the other: few replacements at a time, draining nodes last."""
        first = tuple(
            before if node.draining else after
            for node, before, after in zip(self.nodes, self.before, self.after, strict=True)
        )
        yield from stages(self.before, first)
        if first != self.after:
            yield self.after


def plan_cluster(
    nodes: Sequence[ClusterNode],
    runtimes: Sequence[RuntimeProfile],
    demand: Sequence[float],
    min_gain: float = MIN_GAIN,
    instances: int | None = None,
    counts: Sequence[int] | None = None,
) -> ClusterPlan:
    """Decide the instances by node and runtime.

    The counts by runtime are those of one cluster without nodes: the optimum (Eqs. 1 to 7) of the demand of all
    entrances with `instances` (G). A runtime needs no instance where longer ones serve its lengths; each entrance keeps
    one of the longest. The placement then changes the fewest instances, and the least loaded ones (`place`).

    Without demand the counts change only as far as G and the devices require: the least loaded instances end where
    there are too many, and those that lack are of the longest runtime, which serves every length.

    Args:
        nodes: The nodes.
        runtimes: Profiles of the runtimes, ascending by `max_length`.
        demand: Queries per SLO period of all entrances, by the shortest runtime that fits them (Q_i), [runtimes].
        min_gain: Share of the mean latency that a change must save, unless the number of instances requires it.
        instances: Number of instances on the nodes that do not drain; None: as many as their devices hold.
        counts: Instances by runtime to place as they are, [runtimes]; None: they are decided.

    Raises:
        InvalidArgument: All nodes drain, an entrance has no device, a node has not a count for each runtime, or
            `instances` are fewer than entrances that do not drain or more than devices.
    """
    active = _active(nodes, len(runtimes))
    devices = sum(node.devices for node in active)
    longest = max(1, sum(node.entrance for node in active))
    total = devices if instances is None else instances
    if counts is not None:
        _check_counts(counts, devices, longest)
        total = sum(counts)
    if not longest <= total <= devices:
        raise InvalidArgument(f"instances must be between {longest} and {devices}, got {total}")
    number = f"the devices hold {total} instances" if total == devices else f"{total} instances are wanted"
    before = tuple(node.instances for node in nodes)
    counted = _counted(nodes)
    mean_before = mean_best = None
    solution: Solution | None = None
    if counts is not None:
        wanted, reason = tuple(counts), "an operator has set the instances"
    elif any(demand):
        problem = AllocationProblem(total, tuple(runtimes), tuple(demand), longest)
        if counted[-1] < longest:
            solution = solve(problem)
            wanted, reason = solution.instances, _ENTRANCES
        elif (found := reallocate(problem, counted, min_gain)) is not None:
            solution, wanted = found.solution, found.after
            mean_before, mean_best = found.mean_before_s, found.mean_best_s
            reason = _reason(counted, wanted, solution, found.gain, min_gain)
            if sum(counted) != total:
                reason = f"{number} instead of {sum(counted)}"
    if solution is None and counts is None:
        wanted = _fitting(counted, _loads(nodes), total, longest)
        reason = "there were too few queries to decide on" if any(demand) else "there were no queries"
        if wanted != counted:
            reason += f", and {_ENTRANCES if sum(counted) == total else f'{number} instead of {sum(counted)}'}"
    after = _placed(nodes, active, wanted)
    if after != before and wanted == counted:
        names = ", ".join(node.name for node in nodes if node.draining)
        reason += f"; {names} drains" if names else "; a node has more instances than devices"
    return ClusterPlan(
        nodes=tuple(nodes),
        before=before,
        after=after,
        reason=reason,
        demand=tuple(demand) if solution is not None else (),
        best=solution.instances if solution is not None else (),
        mean_before_s=mean_before,
        mean_best_s=mean_best,
        shortfall=solution.shortfall if solution is not None else None,
        instances_short=solution.gpus_short if solution is not None else 0,
    )


def _check_counts(counts: Sequence[int], devices: int, longest: int) -> None:
    """Check instances that an operator has set."""
    if min(counts) < 0 or counts[-1] < longest:
        raise InvalidArgument(
            f"instances are {', '.join(map(str, counts))}; accepted are numbers from 0, of the longest runtime at "
            f"least {longest}, one for each entrance that does not drain"
        )
    if sum(counts) > devices:
        raise InvalidArgument(f"{sum(counts)} instances are set, and the devices of the nodes hold {devices}")


def _active(nodes: Sequence[ClusterNode], runtimes: int) -> list[ClusterNode]:
    for node in nodes:
        for name, values in (("instances", node.instances), ("busy_s", node.busy_s)):
            if len(values) != runtimes or min(values) < 0:
                raise InvalidArgument(
                    f"{name} of node '{node.name}' must be {runtimes} numbers of at least 0, got {values}"
                )
        if node.devices < (1 if node.entrance and not node.draining else 0):
            raise InvalidArgument(f"devices of node '{node.name}' must be at least 1, got {node.devices}")
    active = [node for node in nodes if not node.draining]
    if not sum(node.devices for node in active):
        raise InvalidArgument("no node has devices that do not drain; expected at least 1")
    return active


def _counted(nodes: Sequence[ClusterNode]) -> tuple[int, ...]:
    """Return the present instances by runtime, without those that draining entrances keep."""
    columns = [sum(counts) for counts in zip(*(node.instances for node in nodes), strict=True)]
    columns[-1] -= sum(node.draining and node.entrance and node.instances[-1] > 0 for node in nodes)
    return tuple(columns)


def _reason(counted: tuple[int, ...], wanted: tuple[int, ...], solution: Solution, gain: float, min_gain: float) -> str:
    if wanted != counted:
        return f"the best allocation is predicted to be {100 * gain:.0f} % faster"
    if solution.instances == counted:
        return "the current allocation is the best one"
    return (
        f"the best allocation is predicted to be {100 * gain:.1f} % faster, below the minimum gain of "
        f"{100 * min_gain:g} %"
    )


def _loads(nodes: Sequence[ClusterNode]) -> list[InstanceLoad]:
    """Return the mean load of each present instance."""
    loads: list[InstanceLoad] = []
    for at, node in enumerate(nodes):
        for runtime, (count, busy_s) in enumerate(zip(node.instances, node.busy_s, strict=True)):
            loads += [InstanceLoad(len(loads) + n, runtime, busy_s / count, at) for n in range(count)]
    return loads


def _fitting(counted: Sequence[int], loads: Sequence[InstanceLoad], total: int, longest: int) -> tuple[int, ...]:
    """Return the counts nearest to the present ones with this total, and enough of the longest runtime.

    The least loaded instances end. Of equally loaded ones the last instance of a runtime ends last, and one of the
    runtime with the most instances first.
    """
    counts = list(counted)
    counts[-1] = max(counts[-1], longest)
    left = [sorted(load.load for load in loads if load.runtime == runtime) for runtime in range(len(counts))]
    while sum(counts) > total:
        spare = [at for at, count in enumerate(counts) if count > (longest if at == len(counts) - 1 else 0)]
        ends = min(spare, key=lambda at: (left[at][0], counts[at] == 1, -counts[at], at))
        counts[ends] -= 1
        del left[ends][0]
    counts[-1] += total - sum(counts)
    return tuple(counts)


def _placed(nodes: Sequence[ClusterNode], active: Sequence[ClusterNode], wanted: Sequence[int]) -> NodeCounts:
    """Place the counts on the nodes that do not drain.

    The instance of the longest runtime that an entrance keeps is its most loaded present one, or a new one, in every
    placement with the fewest and least loaded moves. So it is set aside with its device, and `place` decides the rest.
    """
    last = len(wanted) - 1
    kept = [node.entrance and node.instances[last] > 0 for node in active]
    movable = [
        ClusterNode(node.name, 0, _without(node.instances, last, keeps), _share(node.busy_s, node.instances, keeps))
        for node, keeps in zip(active, kept, strict=True)
    ]
    placed = place(
        _without(wanted, last, sum(node.entrance for node in active)),
        [node.devices - node.entrance for node in active],
        _loads(movable),
    )
    rows = iter(placed)
    return tuple(
        _without((0,) * (last + 1) if node.draining else next(rows), last, -int(node.entrance)) for node in nodes
    )


def _without(counts: Sequence[int], runtime: int, fewer: int) -> tuple[int, ...]:
    return tuple(count - fewer * (at == runtime) for at, count in enumerate(counts))


def _share(busy_s: Sequence[float], instances: Sequence[int], keeps: bool) -> tuple[float, ...]:
    """Return the busy time without the share of an instance of the longest runtime that is set aside."""
    if not keeps:
        return tuple(busy_s)
    return (*busy_s[:-1], busy_s[-1] * (instances[-1] - 1) / instances[-1])
