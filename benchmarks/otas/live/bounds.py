"""Upper bounds on the utility of any system, from the accuracies and speeds that policies use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.otas.live.load import OtasLoad

Floats = npt.NDArray[np.float64]
# Width of the time slots; arrivals and deadlines are rounded so that queries get more time.
_SLOT_S = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds for the queries of one run, by the accuracies that policies use.

    Attributes:
        most: Utility that no policy exceeds, see `most_earned`.
        all_at_best: Utility with time for the best γ of every query.
        gain: See `adaptation_gain`.
    """

    most: float
    all_at_best: float
    gain: float


def expected_utilities(load: OtasLoad, accuracies: Mapping[str, Mapping[int, float]], gammas: list[int]) -> Floats:
    """Return the expected utility of an answer in time, of shape [types, gammas]."""
    return np.array([[each.utility * accuracies[each.task][gamma] for gamma in gammas] for each in load.types])


def adaptation_gain(load: OtasLoad, earns: Floats, unchanged: int) -> float:
    """Return accuracy(best γ) / accuracy(γ 0), weighted by utility: the gain if there is time for every γ.

    Args:
        load: The queries.
        earns: Expected utilities, see `expected_utilities`.
        unchanged: Index of γ 0.
    """
    per_query = earns[load.kinds]
    return float(per_query.max(axis=1).sum() / per_query[:, unchanged].sum())


def most_earned(load: OtasLoad, earns: Floats, seconds: Floats) -> float:
    """Return an upper bound for every policy, also with known arrivals: the optimum of a fluid relaxation.

    Any share of a query may run at any γ and at any time while it waits, and batches of any size are as fast as the
    fastest. This is a linear programme of the shares of each type of queries by γ, and of engine time by slot.

    Args:
        load: The queries.
        earns: Expected utilities, see `expected_utilities`.
        seconds: Seconds per query in the fastest batch by γ, of shape [gammas].
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, vstack

    slots = load.times // _SLOT_S
    groups, numbers = np.unique(np.stack([slots, load.kinds], axis=1).astype(int), axis=0, return_counts=True)
    last = groups[:, 0] + np.ceil(np.array([each.latency_s for each in load.types])[groups[:, 1]] / _SLOT_S - 1e-9)
    of_group = np.concatenate(
        [
            np.full(int(end - begin) + 1, place)
            for place, (begin, end) in enumerate(zip(groups[:, 0], last, strict=True))
        ]
    )
    slot = np.concatenate([np.arange(begin, end + 1) for begin, end in zip(groups[:, 0], last, strict=True)])
    count, options, pieces = len(groups), len(seconds), len(slot)
    # Variables: queries of each group at each γ, then seconds of each group in each slot.
    shares = np.arange(count * options).reshape(count, options)
    times = count * options + np.arange(pieces)
    rows = np.concatenate([np.repeat(np.arange(count), options), of_group])
    columns = np.concatenate([shares.ravel(), times])
    values = np.concatenate([np.tile(seconds, count), np.full(pieces, -1.0)])
    takes = coo_array((values, (rows, columns)), shape=(count, count * options + pieces))
    number = coo_array(
        (np.ones(count * options), (np.repeat(np.arange(count), options), shares.ravel())), shape=takes.shape
    )
    names, of_slot = np.unique(slot, return_inverse=True)
    engine = coo_array((np.ones(pieces), (of_slot, times)), shape=(len(names), takes.shape[1]))
    found = linprog(
        -np.concatenate([earns[groups[:, 1]].ravel(), np.zeros(pieces)]),
        A_ub=vstack([number, engine]).tocsr(),
        b_ub=np.concatenate([numbers, np.full(len(names), _SLOT_S)]),
        A_eq=takes.tocsr(),
        b_eq=np.zeros(count),
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the bound's linear programme was not solved: {found.message}")
    return float(-found.fun)
