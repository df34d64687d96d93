"""Queries of simulated nodes and their events: sent to an instance, run, answered; and those that are sent again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from tidal.arlo.policies import ArloBatch, ArloQuery
from tidal.simulator.arlo.nodes.pools import Call, Entrance, SimulatedNode
from tidal.simulator.requests import Floats

#: Called with the time of an event and with its subject.
Happens = Callable[[float, Any], None]


class Queries:
    """Events in the order of their times, and the queries that they are about.

    Args:
        static_s: Latency of one query padded to each runtime, in seconds.
        hop_s: Time of a query or an answer to another node, in seconds.
    """

    def __init__(self, static_s: Sequence[float], hop_s: float) -> None:
        self.now = 0.0
        self.up: list[Entrance] = []
        """Entrances that dispatch."""
        self.arrived = self.answered = self.sent = self.remote = self.again = 0
        self._static_s, self._hop_s = static_s, hop_s
        self._events: list[tuple[float, int, Happens, Any]] = []
        self._order, self._turn = itertools.count(), itertools.count()
        self._backlog: list[ArloQuery] = []  # queries for which no entrance was up
        self._arrival_s: list[float] = []
        self._latency_s: list[float] = []

    def at(self, time: float, happens: Happens, subject: Any) -> None:
        """Let something happen at a time in seconds, after what was scheduled for that time before."""
        heappush(self._events, (time, next(self._order), happens, subject))

    def advance(self, until: float) -> None:
        """Process the events up to and including a time, which becomes `now`."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, happens, subject = heappop(events)
            happens(self.now, subject)
        self.now = until

    def arrive(self, length: int, pick: int) -> None:
        """Let a query arrive now.

        Args:
            length: Length in tokens.
            pick: Random number that determines the entrance.
        """
        self.arrived += 1
        self._submit(ArloQuery(length, self.now), pick)

    def again_at_others(self, queries: Sequence[ArloQuery]) -> None:
        """Send queries of a lost entrance again, as its clients do, to the others in turn."""
        self.again += len(queries)
        for query in queries:
            self._submit(query, next(self._turn))

    def flush(self) -> None:
        """Send the queries that arrived while no entrance was up."""
        if self.up:
            waiting, self._backlog = self._backlog, []
            for query in waiting:
                self._submit(query, next(self._turn))

    def give_up(self, entrance: Entrance, node: SimulatedNode) -> None:
        """Dispatch the calls of an entrance again that a lost node does not answer."""
        lost = [call for call in entrance.calls if call.node is node and (call.life != node.life or not node.up)]
        for call in lost:
            call.given_up = True
            del entrance.calls[call]
            entrance.policy.requeue(call.batch)
            entrance.policy.finished(call.batch)
        self.again += len(lost)

    def resume(self, nodes: Sequence[SimulatedNode]) -> None:
        """Start what instances or lanes that were added can start."""
        for node in nodes:
            for pool in node.pools:
                while pool.queue and pool.free:
                    self._run(self.now, pool.queue.popleft())
        for entrance in self.up:
            self.start(self.now, entrance)

    def start(self, now: float, entrance: Entrance) -> None:
        """Send every query that an entrance can send now."""
        policy = entrance.policy
        while (batch := policy.next_batch(now)) is not None:
            self._send(now, entrance, batch)

    def take_answers(self) -> tuple[Floats, Floats]:
        """Return arrival times and latencies in seconds of the queries that were answered since the last call."""
        found = np.asarray(self._arrival_s), np.asarray(self._latency_s)
        self._arrival_s.clear()
        self._latency_s.clear()
        return found

    def _submit(self, query: ArloQuery, pick: int) -> None:
        if not self.up:
            self._backlog.append(query)
            return
        entrance = self.up[pick % len(self.up)]
        entrance.open[query] = None
        entrance.policy.submit(query)
        self.start(self.now, entrance)

    def _send(self, now: float, entrance: Entrance, batch: ArloBatch) -> None:
        other = entrance.lanes.get(batch.lane)
        node = entrance.node if other is None else other
        call = Call(entrance, batch, node, node.life, other is not None)
        entrance.calls[call] = None
        self.sent += 1
        if other is None:
            self._reach(now, call)
        else:
            self.remote += 1
            self.at(now + self._hop_s, self._reach, call)

    def _reach(self, now: float, call: Call) -> None:
        node = call.node
        if call.life != node.life or not node.up:
            return  # its entrance notices the loss
        pool = call.pool = node.pools[call.batch.runtime]
        if pool.free:
            self._run(now, call)
        else:
            pool.queue.append(call)

    def _run(self, now: float, call: Call) -> None:
        assert call.pool is not None
        runtime = call.batch.runtime
        seconds = self._static_s[runtime]
        call.pool.running += 1
        call.node.busy_s[runtime] += seconds
        self.at(now + seconds, self._end, call)

    def _end(self, now: float, call: Call) -> None:
        if call.life != call.node.life:
            return
        pool = call.pool
        assert pool is not None
        pool.running -= 1
        if pool.queue and pool.free:
            self._run(now, pool.queue.popleft())
        if call.remote:
            self.at(now + self._hop_s, self._answer, call)
        else:
            self._answer(now, call)

    def _answer(self, now: float, call: Call) -> None:
        entrance = call.entrance
        if call.given_up or not entrance.up:
            return
        (query,) = call.batch.queries
        del entrance.calls[call], entrance.open[query]
        entrance.policy.finished(call.batch)
        self.answered += 1
        self._arrival_s.append(query.arrival)
        self._latency_s.append(now - query.arrival)
        self.start(now, entrance)
