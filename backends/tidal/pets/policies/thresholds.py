"""Thresholds that are profiled in advance: for the spread of lengths (PetS §6.4) and for streams (§6.3.3)."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThresholdCase:
    """One measured case.

    Attributes:
        value: Quantity that is compared with the threshold.
        below: Seconds of the choice below the threshold.
        above: Seconds of the choice from the threshold on.
    """

    value: float
    below: float  # of the way that is taken below the threshold
    above: float  # of the way that is taken from the threshold on


def best_threshold(cases: Sequence[ThresholdCase]) -> float:
    """The threshold with the least total time over all cases.

    It is half way between two cases, 0 if one choice is always better, and the largest number if the other is.
    """
    ordered = sorted(cases, key=lambda case: case.value)
    totals = [sum(case.above for case in ordered)]
    for case in ordered:
        totals.append(totals[-1] + case.below - case.above)
    between = [(a.value + b.value) / 2 for a, b in itertools.pairwise(ordered)]
    # No threshold can separate equal values.
    positions = [0, *(i for i, (a, b) in enumerate(itertools.pairwise(ordered), 1) if a.value < b.value), len(ordered)]
    thresholds = [0.0, *between, sys.float_info.max]
    return thresholds[min(positions, key=totals.__getitem__)]
