"""What serving adds to the engines' time, from times that were measured.

The levels' answers come with the time of their engines. That leaves out transport, tokenisation, queues and threads,
and what a query pays for going on to a further level. On short texts this is more than the engines take, and a query
that two levels read pays more of it than one that a single model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from tidal import device
from tidal.tabi.manifest import EscalationOverhead, ServingOverhead
from tidal_builders.tabi.passes import Indices
from tidal_builders.tabi.probe import Way

Floats = npt.NDArray[np.float64]

# Share of the slowest and of the fastest queries that a mean leaves out: other work on the machine slows some down.
_TRIMMED = 0.25
# Factor by which the engines' times may differ from those that the levels' answers came with.
_MOST_DRIFT = 1.3


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of queries, one at a time.

    Attributes:
        ways: that were measured through the server.
        rows: indices of the queries, [n].
        served: of each way through the server, [ways, n].
        engines: of each level's engine alone, measured by turns with the server, [levels, n].
    """

    ways: tuple[Way, ...]
    rows: Indices
    served: Floats
    engines: Floats


def overhead(levels: Sequence[str], times: Times, collected: Sequence[Floats]) -> ServingOverhead:
    """What the served times have beyond the engines' times.

    The means that come of it are those that were served: of each level alone, and of each pair of levels. An engine
    that took longer by itself than a served query, as on a machine with other work, counts as long as that query.

    Args:
        levels: names, ascending by score.
        times: that were measured.
        collected: of each level, the time of its engine on each query as its answers come with it, [all queries].
    """
    served = {way: _mean(each) for way, each in zip(times.ways, times.served, strict=True)}
    alone_served = [served[Way((place,))] for place in range(len(levels))]
    engines = [min(_mean(each), most) for each, most in zip(times.engines, alone_served, strict=True)]
    alone = [most - engine for most, engine in zip(alone_served, engines, strict=True)]

    def hop(way: Way) -> float:
        below, above = way.levels
        # Differences of noisy times may be below 0, which no part of serving takes.
        return max(0.0, served[way] - alone_served[below] - engines[above])

    onward = []
    for way in times.ways:
        if len(way.levels) != 2 or way.pruned:
            continue
        below, above = way.levels
        pruned = Way(way.levels, pruned=True)
        onward.append(
            EscalationOverhead(
                below=levels[below],
                above=levels[above],
                ms=hop(way),
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


def disturbance_warning(levels: Sequence[str], times: Times, collected: Sequence[Floats]) -> str | None:
    """A warning where the engines' times show other work on the machine; None elsewhere.

    They do where they changed since the levels' answers were collected, or exceed a served query's.

    Args:
        levels: names, ascending by score.
        times: that were measured.
        collected: of each level, the time of its engine on each query as its answers come with it, [all queries].
    """
    then = [_mean(each[times.rows]) for each in collected]
    now = [_mean(each) for each in times.engines]
    served = [_mean(times.served[times.ways.index(Way((place,)))]) for place in range(len(levels))]
    if all(
        1 / _MOST_DRIFT <= after / before <= _MOST_DRIFT and after <= most
        for before, after, most in zip(then, now, served, strict=True)
    ):
        return None
    changes = ", ".join(
        f"{name} {before:.2f} ms, later {after:.2f} ms, and {most:.2f} ms with all that serving adds"
        for name, before, after, most in zip(levels, then, now, served, strict=True)
    )
    return (
        f"the machine was not quiet while latencies were measured (engine of {changes}), and the choice depends on "
        "them: build again with --force when it is"
    )


def _mean(times: Floats) -> float:
    return float(trim_mean(times, _TRIMMED))
