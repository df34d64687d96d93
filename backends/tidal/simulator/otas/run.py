"""Event loop: queries arrive while an engine runs one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidal.otas.policies import Batch, CostProfile, OtasPolicy, Query
from tidal.simulator.otas.result import OtasResult

#: Returns the duration of a batch in seconds.
Seconds = Callable[[Batch], float]


def measured_seconds(profile: CostProfile) -> Seconds:
    """Return durations from a measured profile."""
    table = {
        gamma: [0.0, *(profile.latency_s(gamma, size) for size in range(1, profile.max_batch + 1))]
        for gamma in profile.gammas
    }
    return lambda batch: table[batch.gamma][len(batch.queries)]


def simulate(
    policy: OtasPolicy, profile: CostProfile, queries: Iterable[Query], seconds: Seconds | None = None
) -> OtasResult:
    """Run a policy until every query is answered or evicted, with the server's sequence of calls.

    Args:
        policy: Empty policy.
        profile: Profile with the accuracies, and by default the durations.
        queries: Queries in the order of arrival.
        seconds: Returns the duration of a batch; None: the profile's.
    """
    result, takes = OtasResult(), seconds or measured_seconds(profile)
    accuracies: dict[int, dict[str, float]] = {gamma: {} for gamma in profile.gammas}
    coming = iter(queries)
    following = next(coming, None)
    now = 0.0
    while True:
        while following is not None and following.arrival <= now:
            result.came(following)
            policy.add(following, following.arrival)
            following = next(coming, None)
        decision = policy.next(now)
        result.evicted += len(decision.evicted)
        batch = decision.batch
        if batch is None:
            if following is None:
                return result
            now = following.arrival
            continue
        known = accuracies[batch.gamma]
        for query in batch.queries:
            if query.task not in known:
                known[query.task] = profile.accuracy(query.task, batch.gamma)
        took = takes(batch)
        while following is not None and following.arrival <= now + took:
            result.came(following)
            policy.add(following, following.arrival)
            following = next(coming, None)
        result.ran(batch, known, now, now + took)
        now += took
        policy.finished(batch, took)
