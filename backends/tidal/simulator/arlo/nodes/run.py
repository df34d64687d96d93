"""A run over simulated nodes: arrivals, losses and returns of nodes, plans, and exchanges between entrances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np

from tidal.arlo.policies import PartitionedPolicy
from tidal.arlo.scheduling import MIN_GAIN, even_allocation
from tidal.errors import InvalidArgument
from tidal.simulator.arlo.nodes.control import Controller
from tidal.simulator.arlo.nodes.dispatch import InformedPolicy
from tidal.simulator.arlo.nodes.pools import Entrance, SimulatedNode
from tidal.simulator.arlo.nodes.queries import Queries
from tidal.simulator.arlo.nodes.result import NodesResult, NodesSample
from tidal.simulator.arlo.nodes.settings import SimulatedNodes
from tidal.simulator.arlo.run import OVERHEAD_S
from tidal.simulator.arlo.service_times import ServiceTimes
from tidal.simulator.arlo.workload import LengthHistory
from tidal.simulator.requests import Floats, RequestsInSecond, RequestSource


def simulate_nodes(
    workload: RequestSource,
    times: ServiceTimes,
    nodes: SimulatedNodes,
    *,
    slo_s: float,
    history: LengthHistory | None = None,
    period_s: float = 120.0,
    min_gain: float = MIN_GAIN,
    overhead_s: float = OVERHEAD_S,
    seed: int = 0,
    on_second: Callable[[float], None] | None = None,
) -> NodesResult:
    """Run queries through nodes with several devices each until every query is answered.

    An entrance dispatches by Algorithm 1 over the instances of all nodes, keeps the queues of its instances, and sends
    a few queries at a time to each, as a served front does. On a node, queries wait for the instances of their runtime
    in the order in which they arrive. Queries of a lost node are dispatched again: those that ran on
    it by their entrance, those that it had received by their client at another entrance. A replaced node starts with
    equal numbers of each runtime.

    Args:
        workload: Queries that arrive.
        times: Latencies of the runtimes.
        nodes: The nodes, their entrances and losses.
        slo_s: Latency objective in seconds.
        history: Past queries for the first allocation; None: equal numbers of each runtime.
        period_s: Time between two plans of the controller in seconds.
        min_gain: Share of the mean latency that a change must save.
        overhead_s: Time added to every latency in seconds; it does not occupy a device.
        seed: Seed of the entrances at which queries arrive.
        on_second: Called with the virtual time after each second.

    Raises:
        InvalidArgument: An input is out of range.
    """
    if not 0 <= overhead_s < math.inf:
        raise InvalidArgument(f"the overhead per query must be at least 0 s, got {overhead_s:g}")
    if workload.longest > times.longest:
        raise InvalidArgument(
            f"queries have up to {workload.longest} tokens; the longest runtime accepts {times.longest}"
        )
    run = _Run(workload, times, nodes, slo_s, period_s, min_gain, overhead_s, seed)
    run.begin(history)
    for second in itertools.chain(workload, run.silence()):
        run.second(second)
        if on_second is not None:
            on_second(second.start + 1.0)
    return run.result()


class _Run:
    """State of a run."""

    def __init__(
        self,
        workload: RequestSource,
        times: ServiceTimes,
        settings: SimulatedNodes,
        slo_s: float,
        period_s: float,
        min_gain: float,
        overhead_s: float,
        seed: int,
    ) -> None:
        self._workload, self._times, self._settings, self._slo_s = workload, times, settings, slo_s
        self._overhead_s = overhead_s
        self._nodes = [SimulatedNode(at, f"node{at:04}", count) for at, count in enumerate(settings.devices)]
        self._by_name = {node.name: node for node in self._nodes}
        self._queries = Queries(times.static_s, settings.hop_s)
        self._controller = Controller(
            self._nodes,
            settings,
            times,
            slo_s,
            period_s=period_s,
            min_gain=min_gain,
            publish=self._publish,
            schedule=lambda at: self._queries.at(at, self._stage, None),
        )
        self._rng = np.random.default_rng(seed)
        self._answers: list[tuple[Floats, Floats]] = []
        self._samples: list[NodesSample] = []

    def begin(self, history: LengthHistory | None) -> None:
        absent = {outage.node for outage in self._settings.outages if not outage.at_s}
        for node in self._nodes:
            node.up = node.index not in absent
        self._controller.begin(history)
        for node in self._nodes:
            if node.up:
                self._add_entrance(node)
        for outage in self._settings.outages:
            if outage.at_s:
                self._queries.at(outage.at_s, self._lose, self._nodes[outage.node])
            if outage.back_s < math.inf:
                self._queries.at(outage.back_s, self._return, self._nodes[outage.node])

    def silence(self) -> Iterable[RequestsInSecond]:
        """Yield seconds without arrivals until every query is answered."""
        start = self._workload.seconds
        while self._queries.answered < self._queries.arrived:
            yield RequestsInSecond(float(start), np.empty(0), np.empty(0, np.int64))
            start += 1

    def second(self, second: RequestsInSecond) -> None:
        queries, end = self._queries, second.start + 1.0
        picks = self._rng.integers(0, 1 << 30, len(second.times)).tolist()
        for now, length, pick in zip(second.times.tolist(), second.lengths.tolist(), picks, strict=True):
            queries.advance(now)
            queries.arrive(length, pick)
        queries.advance(end)
        self._controller.observe(second.lengths)
        self._note(end)
        self._controller.tick(end)

    def result(self) -> NodesResult:
        arrivals, latencies = zip(*self._answers, strict=True)
        return NodesResult(
            arrivals_s=np.concatenate(arrivals),
            latencies_s=np.concatenate(latencies) + self._overhead_s,
            seconds=float(self._workload.seconds),
            remote=self._queries.remote / max(1, self._queries.sent),
            again=self._queries.again,
            plans=tuple(self._controller.plans),
            samples=tuple(self._samples),
        )

    def _note(self, end: float) -> None:
        self._answers.append(self._queries.take_answers())
        up = [node for node in self._nodes if node.up]
        counts = tuple(map(sum, zip(*(node.instances for node in up), strict=True)))
        waiting = self._queries.arrived - self._queries.answered
        self._samples.append(NodesSample(end, len(up), counts or (0,) * len(self._times.max_lengths), waiting))

    def _lose(self, now: float, node: SimulatedNode) -> None:
        queries, noticed = self._queries, now + self._settings.notice_s
        node.lose(now)
        for entrance in queries.up:
            if entrance.node is node:
                queries.at(noticed, lambda _, open_queries: queries.again_at_others(open_queries), list(entrance.open))
            else:
                queries.at(noticed, self._notice, (entrance, node))
        queries.up = [entrance for entrance in queries.up if entrance.up]

    def _notice(self, now: float, subject: tuple[Entrance, SimulatedNode]) -> None:
        """Let an entrance notice that a node was lost."""
        entrance, node = subject
        if not entrance.up:
            return
        if not node.up:
            entrance.unreachable.add(node.name)
            self._allocate(entrance)
        self._queries.give_up(entrance, node)
        self._queries.start(now, entrance)

    def _return(self, now: float, node: SimulatedNode) -> None:
        node.start(even_allocation(node.devices, len(self._times.max_lengths)))
        self._add_entrance(node)
        self._queries.flush()

    def _add_entrance(self, node: SimulatedNode) -> None:
        """Let a node that serves dispatch, if queries arrive at it."""
        settings, times, queries = self._settings, self._times, self._queries
        if node.index >= settings.entrances:
            return
        informed = settings.exchange_s is not None and settings.entrances > 1
        kind = InformedPolicy if informed else PartitionedPolicy
        policy = kind(
            times.max_lengths, times.static_s, self._slo_s, node.instances, rule=settings.rule, depth=settings.depth
        )
        entrance = Entrance(node, policy, node.life)
        entrance.unreachable = {each.name for each in self._nodes if not each.up}
        self._allocate(entrance)
        queries.up.append(entrance)
        if informed:
            assert settings.exchange_s is not None
            # Entrances do not exchange at the same moment.
            first = (node.index + 1) / settings.entrances * settings.exchange_s
            queries.at(queries.now + first, self._exchange, entrance)

    def _exchange(self, now: float, subject: Entrance) -> None:
        """Let an entrance publish what it has outstanding, and read what the others have published."""
        assert isinstance(subject.policy, InformedPolicy)
        assert self._settings.exchange_s is not None
        if not subject.up:
            return
        own = subject.node.name
        subject.published = {node or own: row for node, row in subject.policy.own_outstanding().items()}
        others: dict[str | None, list[int]] = {}
        for entrance in self._queries.up:
            if entrance is not subject:
                for name, row in entrance.published.items():
                    node = None if name == own else name
                    others[node] = [a + b for a, b in zip(others[node], row, strict=True)] if node in others else row
        subject.policy.inform(others)
        self._queries.at(now + self._settings.exchange_s, self._exchange, subject)

    def _allocate(self, entrance: Entrance) -> None:
        entrance.allocate(self._controller.table, self._controller.assigned, self._by_name)

    def _stage(self, now: float, _: None) -> None:
        self._controller.finish_stage(now)

    def _publish(self) -> None:
        """Pass a changed table to the entrances; instances that were added start the queries that wait for them."""
        for entrance in self._queries.up:
            known = {name for name in entrance.unreachable if self._controller.knows(self._by_name[name])}
            entrance.unreachable -= known
            self._allocate(entrance)
        self._queries.resume(self._nodes)
