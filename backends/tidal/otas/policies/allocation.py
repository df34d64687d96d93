"""Allocate a γ to each waiting batch: Algorithm 2, a dynamic programme, and Algorithm 3, by the arrival rate.

Batches are in the order of their deadlines. γ is given as an index into the γ list, from 0; None means that a batch is
not executed (index 0 of the paper).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Values of one batch by γ.
Row = Sequence[float]


def by_dynamic_programme(
    now: float, deadlines: Sequence[float], seconds: Sequence[Row], utilities: Sequence[Row]
) -> list[int | None]:
    """Choose γ for a large sum of utilities (Algorithm 2, lines 5 ff.).

    A state is a batch and its γ; it keeps the highest utility of all paths to it, and the clock of that path. A path
    with slightly less utility that ends much earlier is discarded, so the result is not always optimal.

    Corrections of the published programme: index 0 has no γ in the list (lines 34 and 37); the previous index starts
    as 0 rather than 1 (line 6), because a prefix in which no batch is executed never passes the comparison of line 15
    and would be executed at index 1; states start at -∞ rather than 0 (line 5), because a feasible batch with utility
    0 would not advance the clock.

    Args:
        now: Current time T, in seconds.
        deadlines: Deadline of each batch (d_b), ascending, in seconds.
        seconds: Predicted latency by batch and γ (t̂_b), in seconds; infinite where a batch is not allowed.
        utilities: Predicted utility by batch and γ (Û_b).

    Returns:
        Index of γ of each batch; None if it is not executed.
    """
    # States of the previous batch in the order of the search: utility, clock and index (0: not executed).
    states: list[tuple[float, float, int]] = [(0.0, now, 0)]
    sources: list[list[int]] = []  # S, by batch and index
    for deadline, takes, earns in zip(deadlines, seconds, utilities, strict=True):
        # A batch adds the same utility to every state: the first state that leaves enough time is the best.
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
    gamma_indices: list[int | None] = []
    for came_from in reversed(sources):
        gamma_indices.append(index - 1 if index else None)
        index = came_from[index]
    return gamma_indices[::-1]


def by_arrival_rate(
    now: float,
    deadlines: Sequence[float],
    seconds: Sequence[Row],
    mean_utilities: Sequence[float],
    gamma_index: int,
    critical: float = 0.8,
) -> list[int]:
    """Choose γ by the arrival rate, the smallest for a late batch, the largest for a critical one (Algorithm 3).

    Args:
        now: Current time T, in seconds.
        deadlines: Deadline of each batch (d_b), ascending, in seconds.
        seconds: Predicted latency by batch and γ (t̂_b), in seconds; if it is infinite at the chosen γ, the next smaller
            γ with a finite one is used.
        mean_utilities: Mean utility of each batch's queries (Ū_b).
        gamma_index: Index of f(q) in the γ list.
        critical: Mean utility above which a batch is critical (κ).

    Returns:
        Index of γ of each batch.
    """
    gamma_indices = []
    for deadline, takes, utility in zip(deadlines, seconds, mean_utilities, strict=True):
        wanted = gamma_index
        if now + takes[gamma_index] >= deadline:
            wanted = 0
        elif utility > critical:
            wanted = len(takes) - 1
        while wanted and math.isinf(takes[wanted]):
            wanted -= 1
        gamma_indices.append(wanted)
        now += takes[wanted]
    return gamma_indices
