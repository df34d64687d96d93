"""Dispatch at one of several entrances of a cluster, whose knowledge of the others' requests is out of date.

Arlo has one dispatcher over all instances (§3.4). Here every node dispatches the requests that it receives by the same
Algorithm 1: its own outstanding requests are exact, those of other entrances are as old as the last answer or report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidal.arlo.policies.algorithm_1 import choose_level
from tidal.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """An instance of the cluster.

    Attributes:
        lane: Number of the instance, which is not reused.
        node: Number of the node that it runs on.
        runtime: Index of its runtime.
    """

    lane: int
    node: int
    runtime: int


@dataclass(eq=False, slots=True)
class InstanceView:
    """What an entrance knows of an instance.

    Attributes:
        place: The instance.
        remote: Whether it runs on another node than the entrance.
        own: Requests of this entrance that it has not answered.
        others: Requests of other entrances, when they were last reported.
    """

    place: InstancePlace
    remote: bool
    own: int = 0
    others: int = 0

    @property
    def load(self) -> int:
        """Outstanding requests, as far as they are known."""
        return self.own + self.others


class InstanceGroup:
    """The instances of one runtime, as an entrance sees them.

    Args:
        max_length: Maximum length of the runtime's queries, in tokens.
        capacity: Queries that one instance finishes within the SLO (CY in Figure 4).
        instances: Instances of the runtime.
        margin: Number of requests by which a remote instance must be less loaded to be preferred.
        first: Index of the instance that the first of several equal ones is searched from.
    """

    def __init__(
        self, max_length: int, capacity: int, instances: Sequence[InstanceView], *, margin: int, first: int
    ) -> None:
        self.max_length, self.capacity = max_length, capacity
        self._instances = list(instances)
        self._margin = margin
        self._next = first % len(instances) if instances else 0

    def __len__(self) -> int:
        return len(self._instances)

    def head(self) -> InstanceView:
        """Return the least loaded instance; local ones precede equal remote ones, the longest unused equal ones."""
        instances, start, margin = self._instances, self._next, self._margin
        best, least = instances[start], (1 << 62, True)
        for view in (*instances[start:], *instances[:start]):
            key = view.own + view.others + margin * view.remote, view.remote
            if key < least:
                best, least = view, key
        return best

    def used(self, view: InstanceView) -> None:
        """Search from the instance behind this one from now on, so that entrances do not follow each other."""
        self._next = (self._instances.index(view) + 1) % len(self._instances)


class EntrancePolicy:
    """Selects the instance of each request that arrives at one entrance (Arlo, Algorithm 1).

    Args:
        node: Number of the entrance's node.
        runtimes: The runtimes' `max_length` in tokens, ascending.
        capacities: Queries that one instance finishes within the SLO, by runtime.
        places: Instances of all nodes, at least one of the last runtime.
        margin: Number of requests by which a remote instance must be less loaded to be preferred.
        threshold: λ of Algorithm 1.
        decay: α of Algorithm 1.
        peek: L of Algorithm 1.

    Raises:
        InvalidArgument: No instance has the last runtime.
    """

    def __init__(
        self,
        node: int,
        runtimes: Sequence[int],
        capacities: Sequence[int],
        places: Sequence[InstancePlace],
        *,
        margin: int = 0,
        threshold: float = 0.85,
        decay: float = 0.9,
        peek: int = 6,
    ) -> None:
        self._threshold, self._decay, self._peek = threshold, decay, peek
        self._views = {place.lane: InstanceView(place, place.node != node) for place in places}
        self._groups = []
        for runtime, (max_length, capacity) in enumerate(zip(runtimes, capacities, strict=True)):
            views = [view for view in self._views.values() if view.place.runtime == runtime]
            self._groups.append(InstanceGroup(max_length, capacity, views, margin=margin, first=node))
        if not self._groups[-1]:
            raise InvalidArgument("no instance has the longest runtime; expected at least 1 (Eq. 7)")
        self._fitting: list[list[InstanceGroup]] = []
        for index, group in enumerate(self._groups):
            deployed = [longer for longer in self._groups[index:] if longer]
            self._fitting += [deployed] * (group.max_length + 1 - len(self._fitting))

    def dispatch(self, length: int) -> int:
        """Return the lane of the instance that receives a request, which counts as outstanding there.

        Args:
            length: Length of the query in tokens.
        """
        group = choose_level(self._fitting[length][: self._peek], self._threshold, self._decay)
        view = group.head()
        view.own += 1
        group.used(view)
        return view.place.lane

    def answered(self, lane: int, outstanding: int | None = None) -> None:
        """Record an answer, or a failure, of an instance.

        Args:
            lane: Lane of the instance.
            outstanding: Requests of all entrances that the instance had then; None if it did not say.
        """
        view = self._views[lane]
        view.own -= 1
        if outstanding is not None:
            view.others = max(0, outstanding - view.own)

    def changed(self, lane: int, requests: int) -> None:
        """Record that other entrances have more requests at an instance, or fewer.

        Args:
            lane: Lane of the instance.
            requests: Change of their number.
        """
        self._views[lane].others += requests

    def reported(self, outstanding: Mapping[int, int]) -> None:
        """Record a node's report.

        Args:
            outstanding: Requests of all entrances at each instance of the node, by lane.
        """
        for lane, total in outstanding.items():
            view = self._views[lane]
            view.others = max(0, total - view.own)
