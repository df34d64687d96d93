"""Which γ each waiting batch gets: Algorithm 2, a dynamic programme, and Algorithm 3, by the arrival rate.

Batches are in the order of their deadlines. γ is a place in the γ list, from 0; None stands for a batch that is not
executed (the paper's index 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Of a batch, by the place of γ.
Row = Sequence[float]


def by_dynamic_programme(
    now: float, deadlines: Sequence[float], seconds: Sequence[Row], utilities: Sequence[Row]
) -> list[int | None]:
    """Algorithm 2 from line 5 on: places that make the sum of utilities large, by one clock a state.

    A state is a batch and its γ; it keeps the best utility of any way there, and the clock of that way. A way of a
    little less utility that is there much sooner is lost: the result is not always the best.

    Repairs of the printed programme: index 0 has no γ in the list (lines 34 and 37); the previous index starts as 0
    rather than 1 (line 6), or a prefix of which nothing is executed, which never passes the comparison of line 15,
    would be executed at index 1; states start at -∞ rather than 0 (line 5), or a feasible batch that earns nothing
    would not advance the clock.

    Args:
        now: T, seconds.
        deadlines: by batch, ascending (d_b).
        seconds: predicted, by batch and place; infinite for what must not be (t̂_b).
        utilities: predicted, by batch and place (Û_b).
    """
    # The states of the batch before, in the order in which they are tried: utility, clock and index (0: not executed).
    states: list[tuple[float, float, int]] = [(0.0, now, 0)]
    sources: list[list[int]] = []  # S, by batch and index
    for deadline, takes, earns in zip(deadlines, seconds, utilities, strict=True):
        # Whatever a batch earns, it earns after every state: of those that leave it time, the best is the first.
        states.sort(key=lambda state: (-state[0], state[2]))
        utility, clock, source = states[0]
        found = [(utility, clock, 0)]
        came_from = [source] + [0] * len(takes)
        for index, (takes_s, earned) in enumerate(zip(takes, earns, strict=True), 1):
            for utility, clock, source in states:
                if clock + takes_s < deadline:
                    found.append((utility + earned, clock + takes_s, index))
                    came_from[index] = source
                    break
        states = found
        sources.append(came_from)
    index = max(states, key=lambda state: (state[0], -state[2]))[2]
    places: list[int | None] = []
    for came_from in reversed(sources):
        places.append(index - 1 if index else None)
        index = came_from[index]
    return places[::-1]


def by_arrival_rate(
    now: float,
    deadlines: Sequence[float],
    seconds: Sequence[Row],
    mean_utilities: Sequence[float],
    place: int,
    critical: float = 0.8,
) -> list[int]:
    """Algorithm 3: the γ of the arrival rate, the least for a batch that would be late, the most for a critical one.

    Args:
        now: T, seconds.
        deadlines: as above.
        seconds: as above. Where it is infinite at the wanted γ, the next smaller γ that memory allows is taken.
        mean_utilities: of each batch's queries (Ū_b).
        place: of f(q) in the γ list.
        critical: mean utility above which a batch is critical (κ).
    """
    places = []
    for deadline, takes, utility in zip(deadlines, seconds, mean_utilities, strict=True):
        wanted = place
        if now + takes[place] >= deadline:
            wanted = 0
        elif utility > critical:
            wanted = len(takes) - 1
        while wanted and math.isinf(takes[wanted]):
            wanted -= 1
        places.append(wanted)
        now += takes[wanted]
    return places
