"""The time that serving adds to the engines, computed from measured times.

The levels' answers are collected with the time of their engines. That leaves out transport, tokenisation, queues and
threads, and the cost of re-routing a query to a further level. On short texts this is more than the engines take, and
a query that runs on two levels pays more of it than one that runs on a single model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from tidal import device
from tidal.tabi.serving_overhead import EscalationOverhead, ServingOverhead
from tidal_builders.tabi.data import Indices
from tidal_builders.tabi.probe import ProbeRoute

Floats = npt.NDArray[np.float64]

# Share of the slowest and of the fastest queries that a mean leaves out: other work on the machine slows some down.
_TRIMMED = 0.25
# Maximum factor between the engines' times now and when the levels' answers were collected.
_MAX_DRIFT = 1.3


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """Times of queries in milliseconds, one query at a time.

    Attributes:
        routes: Routes that were measured through the server.
        rows: Indices of the queries, [n].
        served: Time of each route through the server, [routes, n].
        engines: Time of each level's engine alone, measured alternately with the server, [levels, n].
    """

    routes: tuple[ProbeRoute, ...]
    rows: Indices
    served: Floats
    engines: Floats


def overhead(levels: Sequence[str], times: ServedTimes, collected: Sequence[Floats]) -> ServingOverhead:
    """Return the difference between the served times and the engines' times.

    Engine time plus overhead equals the mean served time of each level alone and of each pair of levels. An engine
    that took longer alone than a served query, because of other work on the machine, counts as long as that query.

    Args:
        levels: Names of the levels, ascending by score.
        times: Measured times.
        collected: Time of each level's engine on each query when its answers were collected, [all queries] each.
    """
    served = {route: _mean(each) for route, each in zip(times.routes, times.served, strict=True)}
    alone_served = [served[ProbeRoute((place,))] for place in range(len(levels))]
    engines = [min(_mean(each), most) for each, most in zip(times.engines, alone_served, strict=True)]
    alone = [most - engine for most, engine in zip(alone_served, engines, strict=True)]

    def hop(route: ProbeRoute) -> float:
        below, above = route.levels
        # Differences of noisy times may be negative, which no part of serving can be.
        return max(0.0, served[route] - alone_served[below] - engines[above])

    onward = []
    for route in times.routes:
        if len(route.levels) != 2 or route.pruned:
            continue
        below, above = route.levels
        pruned = ProbeRoute(route.levels, pruned=True)
        onward.append(
            EscalationOverhead(
                below=levels[below],
                above=levels[above],
                ms=hop(route),
                pruned_ms=hop(pruned) if pruned in served else None,
            )
        )
    return ServingOverhead(
        processor=device.cpu().name,
        queries=len(times.rows),
        alone_ms=dict(zip(levels, alone, strict=True)),
        onward=tuple(onward),
        engine_scale={
            name: engine / _mean(each[times.rows])
            for name, engine, each in zip(levels, engines, collected, strict=True)
        },
    )


def disturbance_warning(levels: Sequence[str], times: ServedTimes, collected: Sequence[Floats]) -> str | None:
    """Return a warning if the engines' times show other work on the machine, else None.

    They do if they changed since the levels' answers were collected, or exceed those of served queries.

    Args:
        levels: Names of the levels, ascending by score.
        times: Measured times.
        collected: Time of each level's engine on each query when its answers were collected, [all queries] each.
    """
    then = [_mean(each[times.rows]) for each in collected]
    now = [_mean(each) for each in times.engines]
    served = [_mean(times.served[times.routes.index(ProbeRoute((place,)))]) for place in range(len(levels))]
    if all(
        1 / _MAX_DRIFT <= after / before <= _MAX_DRIFT and after <= most
        for before, after, most in zip(then, now, served, strict=True)
    ):
        return None
    changes = ", ".join(
        f"{name} {before:.2f} ms, later {after:.2f} ms, and {most:.2f} ms when served"
        for name, before, after, most in zip(levels, then, now, served, strict=True)
    )
    return (
        f"other work ran on the machine while latencies were measured (engine of {changes}), and the choice depends "
        "on them: build again with --force when the machine is idle"
    )


def _mean(times: Floats) -> float:
    return float(trim_mean(times, _TRIMMED))
