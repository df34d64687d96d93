"""The parts of a cluster that are killed, paused and drained under load at two entrances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import psutil

from reliability.cluster_failures import IN_ONE_CLUSTER, OF_RAY, Failure
from reliability.cluster_load import ClusterRequest, answered_twice
from reliability.clusters import LOST, ClusterUnderTest, cluster_under_test
from reliability.models import LATENCIES_MS, SPLIT
from reliability.rows import MIN_CHANGES, MIN_REQUESTS, Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.cascades import SMALL
from testing.clusters import runs

DISPATCHED_AGAIN_S = 2.0
_NODES = 3
# Queries sent within this time after a failure count for the time until they are dispatched again.
_AFTER_S = 5.0
# Time within which a server that fails has ended.
_LOST_WITHIN_S = 1.0
_QUICK_REQUESTS = 100
# Requests before the failure, and of the control.
_BEFORE, _CONTROL = 40, 200
_MIN_CROSSED = 10


@dataclass
class FailureResult:
    """What clients saw of one failure, over all rounds.

    Attributes:
        requests: Requests that were sent.
        changes: Number of times that it happened.
        failures: Outcomes of requests that failed, and what went wrong with the failure itself.
        again_s: Longest time that the entrance which stays took for a query around the failure, in seconds, by round.
        slowest_s: Longest time that any client waited, in seconds.
    """

    requests: int = 0
    changes: int = 0
    failures: list[str] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    slowest_s: float = 0.0

    def add(self, sent: Sequence[ClusterRequest], failures: Sequence[str], moment: float) -> None:
        """Add a round.

        Args:
            sent: Its requests.
            failures: Failed requests, one description each.
            moment: When the failure happened, `time.monotonic()` seconds.
        """
        self.requests += len(sent)
        self.changes += 1
        self.failures += failures
        around = [each.seconds for each in sent if each.one_entrance and each.in_flight(moment, moment + _AFTER_S)]
        self.again_s.append(max(around, default=float("inf")))
        self.slowest_s = max([self.slowest_s, *(each.seconds for each in sent)])


@dataclass
class ClusterResult:
    """Results of all rounds.

    Attributes:
        found: Result of each failure, by what happens.
        crossed: Queries of a lone entrance that ran on other nodes, by cluster.
        twice: Ids of requests that were answered twice.
        left: Processes and files that were left.
        requests: Number of requests that were sent.
        clusters: Number of clusters.
    """

    found: dict[str, FailureResult] = field(default_factory=dict)
    crossed: list[int] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    requests: int = 0
    clusters: int = 0


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Let the parts of clusters fail one after the other, in several clusters."""
    target.stop()
    rounds = 1 if target.quick else MIN_CHANGES
    requests = _QUICK_REQUESTS if target.quick else -(-MIN_REQUESTS // rounds)
    result = ClusterResult()
    for _ in range(rounds):
        for failures in (IN_ONE_CLUSTER, OF_RAY):
            models = target.repository.folder, SPLIT, [*LATENCIES_MS], SMALL
            with cluster_under_test(target.folder, *models, nodes=2 if target.quick else _NODES) as running:
                fail_in_turn(running, failures, requests, result)
            result.left += running.left
    return rows(result, quick=target.quick)


def fail_in_turn(running: ClusterUnderTest, failures: Sequence[Failure], requests: int, result: ClusterResult) -> None:
    """Let the parts of a cluster fail one after the other, each under a load of its own.

    Args:
        running: The cluster.
        failures: Failures to cause.
        requests: Minimum number of requests of each.
        result: Receives what clients saw.
    """
    result.clusters += 1
    result.crossed.append(running.crossed(_CONTROL))
    uncertain: set[str] = set()
    for failure in failures:
        server = running.server(LOST).server_pid
        with running.load() as load:
            load.wait_for(_BEFORE)
            moment, wrong = failure.happen(running)
            load.wait_for(max(requests, len(load.sent) + _BEFORE))
        if not _serves(server):
            uncertain |= {each.id for each in load.sent if each.in_flight(moment, moment + _LOST_WITHIN_S)}
        result.found.setdefault(failure.what, FailureResult()).add(load.sent, [*load.failures, *wrong], moment)
        result.requests += len(load.sent)
    result.twice += answered_twice(running.log, running.models, uncertain)


def _serves(pid: int) -> bool:
    try:
        return runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def rows(result: ClusterResult, *, quick: bool) -> list[Guarantee]:
    """Return the rows of the table.

    Args:
        result: Results of all rounds.
        quick: Whether fewer requests and changes suffice.
    """
    table, clusters = [], result.clusters
    for failure in (*IN_ONE_CLUSTER, *OF_RAY):
        if (found := result.found.get(failure.what)) is not None:
            table += _rows(failure, found, quick=quick)
    crossed = min(result.crossed, default=0)
    return [
        *table,
        Guarantee(
            "cluster: queries of one entrance that ran on other nodes (control)",
            clusters * _CONTROL,
            0,
            0,
            crossed,
            "queries",
            f">= {_MIN_CROSSED}",
            "without it, the loss of a node would cost its own clients only",
        ),
        _counted("cluster: requests that the entrances answered twice", result.requests, clusters, result.twice),
        _counted("cluster: processes and files left after its end", result.requests, clusters, result.left),
    ]


def _rows(failure: Failure, found: FailureResult, *, quick: bool) -> list[Guarantee]:
    what = f"cluster: {failure.what}"
    row = none_failed(what, found.requests, found.changes, found.failures, quick=quick)
    if row.holds:
        row = replace(row, note=f"the slowest took {found.slowest_s:.1f} s")
    if not failure.loses:
        return [row]
    each = ", ".join(f"{seconds:.2f}" for seconds in found.again_s)
    return [
        row,
        Guarantee(
            f"{what}: the other entrance dispatches to what is left",
            found.requests,
            found.changes,
            0,
            max(found.again_s),
            "s",
            f"<= {DISPATCHED_AGAIN_S:g}",
            f"slowest answer there to what was sent until {_AFTER_S:g} s later: {each}",
        ),
    ]


def _counted(what: str, requests: int, changes: int, found: Sequence[str]) -> Guarantee:
    return Guarantee(what, requests, changes, 0, len(found), "of them", "== 0", "; ".join(found)[:300])
