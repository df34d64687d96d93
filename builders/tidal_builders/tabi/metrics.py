"""How good and how fast answers are, where each of them counts with the probability that it is given."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.tabi.manifest import Latency, Metric

Floats = npt.NDArray[np.float64]


def score(
    metric: Metric, answers: npt.NDArray[np.generic], truth: npt.NDArray[np.generic], weights: Floats | None = None
) -> float:
    """The metric over weighted answers; larger is better.

    With the probabilities of a random route's answers as weights, accuracy and r2 are the exact expectation over the
    draws. The correlations are those of the mixture of all routes, which differ from the expectation by less than
    the draws themselves scatter.

    Args:
        metric: what to measure.
        answers: indices of labels, or values, [m].
        truth: what is right, [m].
        weights: not below 0, at least one above, [m]; equal when None.

    Returns:
        The score; 0 for a correlation or r2 of values that do not vary.
    """
    shares = np.full(len(answers), 1 / len(answers)) if weights is None else weights / weights.sum()
    if metric == "accuracy":
        # In one way for both sums: all right is 1, not a little less, which would miss a target of 1.
        return float(shares[answers == truth].sum() / shares.sum())
    values, wanted = answers.astype(np.float64), truth.astype(np.float64)
    present = shares > 0
    # Not by their deviation alone, which rounding keeps from being exactly 0.
    constant = [np.ptp(each[present]) == 0 for each in (values, wanted)]
    if constant[1] or (constant[0] and metric != "r2"):
        return 0.0
    if metric == "spearman":
        values, wanted = _ranks(values, shares), _ranks(wanted, shares)
    off = wanted - shares @ wanted
    spread = float(shares @ off**2)
    if metric == "r2":
        return 1 - float(shares @ (wanted - values) ** 2) / spread if spread > 0 else 0.0
    around = values - shares @ values
    scale = np.sqrt(spread * float(shares @ around**2))
    return float(shares @ (off * around) / scale) if scale > 0 else 0.0


def _ranks(values: Floats, shares: Floats) -> Floats:
    """The share of the weight below each value, and half of that which equals it."""
    _, group = np.unique(values, return_inverse=True)
    held = np.bincount(group, weights=shares)
    return (np.cumsum(held) - held / 2)[group]


def latency(sorted_ms: Floats, weights: Floats) -> Latency:
    """Mean and percentiles of weighted latencies; a percentile is the least latency that so much of the weight meets.

    Args:
        sorted_ms: milliseconds, ascending, [m].
        weights: of each, [m].
    """
    until = np.cumsum(weights)
    # Sums of probabilities miss the exact share by rounding.
    wanted = np.array([0.25, 0.5, 0.75, 0.99]) * until[-1] * (1 - 1e-12)
    p25, p50, p75, p99 = sorted_ms[np.searchsorted(until, wanted)].tolist()
    return Latency(mean=float(sorted_ms @ weights / until[-1]), p25=p25, p50=p50, p75=p75, p99=p99)
