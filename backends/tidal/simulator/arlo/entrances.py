"""A cluster with several entrances: each dispatches what it receives by what it knows of the others' requests."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

import numpy as np

from tidal.arlo.policies.entrance import EntrancePolicy, InstancePlace
from tidal.arlo.scheduling import capacity_within
from tidal.errors import InvalidArgument
from tidal.simulator.arlo.service_times import ServiceTimes
from tidal.simulator.requests import Floats, RequestSource


class Knowledge(StrEnum):
    """What an entrance learns of the requests of other entrances."""

    EXACT = "exact"
    ANSWERS = "answers"
    OWN = "own"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Entrances:
    """Entrances of a cluster, and how they know of each other's requests.

    Args:
        number: Number of entrances, each on a node of its own; each request goes to one at random.
        nodes: Number of nodes, over which the instances of each runtime are spread in turn; at least one per entrance.
        knowledge: `exact`: everything at once. `answers`: each answer says how many requests its instance has, and
            nodes report all their instances. `own`: nothing. `share`: nothing, and an entrance uses only its share of
            the instances of each runtime that has at least one per entrance.
        margin: See `EntrancePolicy`.
        hop_s: Time of a request, an answer or a report to another node, in seconds.
        report_s: Time between two reports of a node, in seconds.
    """

    number: int
    nodes: int
    knowledge: Knowledge = Knowledge.ANSWERS
    margin: int = 0
    hop_s: float = 0.0005
    report_s: float = 0.1

    def __post_init__(self) -> None:
        if self.number < 1:
            raise InvalidArgument(f"a cluster has at least 1 entrance, got {self.number}")
        if self.nodes < self.number:
            raise InvalidArgument(f"{self.number} entrances need as many nodes, got {self.nodes}")
        if self.margin < 0 or self.hop_s < 0 or self.report_s <= 0:
            raise InvalidArgument("margin and hop_s must be at least 0, report_s above 0")


@dataclass(frozen=True)
class EntrancesResult:
    """Result of a run; every request was answered.

    Args:
        latencies_s: Latency of each request with its hops, in seconds, in the order of arrival, float64 [requests].
        remote: Share of the requests that ran on another node than the one that they arrived at.
    """

    latencies_s: Floats
    remote: float


def simulate_entrances(
    requests: RequestSource, times: ServiceTimes, instances: Sequence[int], slo_s: float, entrances: Entrances
) -> EntrancesResult:
    """Run requests through a cluster of several entrances.

    An instance answers one query at a time, in the order in which they reach it.

    Args:
        requests: Requests.
        times: Latencies of the runtimes.
        instances: Instances by runtime, at least one of the last.
        slo_s: Latency objective in seconds.
        entrances: Entrances and their knowledge.
    """
    return _Run(times, instances, slo_s, entrances).run(requests)


class _Run:
    """State of a run. Events are the arrival of a query at an instance, its answer, and a report."""

    def __init__(self, times: ServiceTimes, instances: Sequence[int], slo_s: float, entrances: Entrances) -> None:
        self._times, self._entrances = times, entrances
        runtimes = [runtime for runtime, number in enumerate(instances) for _ in range(number)]
        self._places = [InstancePlace(lane, lane % entrances.nodes, runtime) for lane, runtime in enumerate(runtimes)]
        capacities = [capacity_within(slo_s, latency) for latency in times.static_s]
        self._policies = [
            EntrancePolicy(node, times.max_lengths, capacities, self._usable(node), margin=entrances.margin)
            for node in range(entrances.number)
        ]
        self._queues: list[deque[int]] = [deque() for _ in self._places]
        self._outstanding = [0] * len(self._places)
        self._events: list[tuple[float, int, int, int]] = []  # time, order, kind, request or node
        self._order = count()

    def _usable(self, node: int) -> list[InstancePlace]:
        """Return the instances that an entrance sends requests to."""
        if self._entrances.knowledge is not Knowledge.SHARE:
            return self._places
        found: list[InstancePlace] = []
        for runtime in range(len(self._times.max_lengths)):
            of_runtime = [place for place in self._places if place.runtime == runtime]
            share = of_runtime[node :: self._entrances.number]
            found += share if len(of_runtime) >= self._entrances.number else of_runtime
        return found

    def run(self, requests: RequestSource) -> EntrancesResult:
        """Run all requests until the last answer."""
        arrivals, lengths = [], list[int]()
        for second in requests:
            arrivals += second.times.tolist()
            lengths += second.lengths.tolist()
        self._entrance = [
            int(each) for each in np.random.default_rng(0).integers(0, self._entrances.number, len(arrivals))
        ]
        self._lane, self._began = [0] * len(arrivals), arrivals
        self._latencies = np.zeros(len(arrivals))
        if self._entrances.knowledge is Knowledge.ANSWERS:
            for node in range(self._entrances.nodes):
                # Nodes do not report at the same moment.
                self._at((node + 1) / self._entrances.nodes * self._entrances.report_s, _REPORT, node)
        remote = 0
        for number, (now, length) in enumerate(zip(arrivals, lengths, strict=True)):
            self._advance(now, reporting=True)
            self._lane[number] = self._policy(number).dispatch(length)
            hop = self._hop(number)
            remote += hop > 0
            if self._entrances.knowledge is Knowledge.EXACT:
                self._share(number, 1)
            self._at(now + hop, _REACHES, number)
        self._advance(float("inf"), reporting=False)
        return EntrancesResult(self._latencies, remote / max(1, len(arrivals)))

    def _policy(self, number: int) -> EntrancePolicy:
        return self._policies[self._entrance[number]]

    def _share(self, number: int, change: int) -> None:
        """Change what the other entrances know of a request's instance."""
        for policy in self._policies:
            if policy is not self._policy(number):
                policy.changed(self._lane[number], change)

    def _hop(self, number: int) -> float:
        """Return the time between a request's entrance and its instance, in seconds."""
        own = self._entrance[number] == self._places[self._lane[number]].node
        return 0.0 if own else self._entrances.hop_s

    def _at(self, time: float, kind: int, subject: int) -> None:
        heapq.heappush(self._events, (time, next(self._order), kind, subject))

    def _advance(self, until: float, *, reporting: bool) -> None:
        """Process the events up to a time."""
        while self._events and self._events[0][0] <= until:
            now, _, kind, subject = heapq.heappop(self._events)
            if kind == _REPORT:
                if reporting:
                    self._report(subject)
                    self._at(now + self._entrances.report_s, _REPORT, subject)
            elif kind == _REACHES:
                self._reaches(now, subject)
            elif kind == _ENDS:
                self._ends(now, subject)
            else:
                self._answer(now, subject)

    def _reaches(self, now: float, number: int) -> None:
        lane = self._lane[number]
        queue = self._queues[lane]
        queue.append(number)
        self._outstanding[lane] += 1
        if len(queue) == 1:
            self._at(now + self._times.static_s[self._places[lane].runtime], _ENDS, number)

    def _ends(self, now: float, number: int) -> None:
        lane = self._lane[number]
        queue = self._queues[lane]
        queue.popleft()
        self._outstanding[lane] -= 1
        if queue:
            self._at(now + self._times.static_s[self._places[lane].runtime], _ENDS, queue[0])
        self._at(now + self._hop(number), _ANSWERED, number)

    def _answer(self, now: float, number: int) -> None:
        lane = self._lane[number]
        self._latencies[number] = now - self._began[number]
        says = self._outstanding[lane] if self._entrances.knowledge is Knowledge.ANSWERS else None
        self._policy(number).answered(lane, says)
        if self._entrances.knowledge is Knowledge.EXACT:
            self._share(number, -1)

    def _report(self, node: int) -> None:
        outstanding = {place.lane: self._outstanding[place.lane] for place in self._places if place.node == node}
        for policy in self._policies:
            policy.reported(outstanding)


_REACHES, _ENDS, _ANSWERED, _REPORT = range(4)
