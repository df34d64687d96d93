"""Fits the early router: an L2-regularised logistic regression on hashed n-grams, with probabilities as targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit

from tidal.tabi.early import EarlyRouter, ngram_buckets
from tidal_builders.tabi.data import Texts, text_numbers

Floats = npt.NDArray[np.float64]
BUCKETS = 4096
# Weights of the regularisation that are tried: half of it times the squared norm is added to the summed cross-entropy.
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class FittedRouter:
    """A fitted early router.

    Attributes:
        weights: Weight of each bucket of n-grams.
        bias: Log odds of a query without n-grams.
        loss: Mean cross-entropy of the estimates for queries that it was not fitted on.
        constant_loss: The same of the mean of the targets, for the same queries.
    """

    weights: tuple[float, ...]
    bias: float
    loss: float
    constant_loss: float

    @property
    def router(self) -> EarlyRouter:
        """The router as it serves."""
        return EarlyRouter(self.weights, self.bias)


def fit_router(texts: Texts, difficulties: Floats) -> tuple[FittedRouter, Floats]:
    """Fit an early router, with the penalty that is best in cross-validation.

    Args:
        texts: Text of each query, or the two texts of a pair, [n].
        difficulties: 1 - con(y) of Eq. 3 at the level that it may skip, [n].

    Returns:
        The router, and its estimate for each of these queries by a router that was fitted without the query, [n].
    """
    features = ngram_features(texts, BUCKETS)
    fold = text_numbers(texts, np.arange(len(texts))) % _FOLDS  # equal texts are in one fold
    held_out = {penalty: np.empty(len(texts)) for penalty in PENALTIES}
    constant = np.empty(len(texts))
    for number in range(_FOLDS):
        rest, inside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if not len(inside):
            continue
        constant[inside] = difficulties[rest].mean() if len(rest) else difficulties.mean()
        for penalty, found in held_out.items():
            weights, bias = fit(features[rest], difficulties[rest], penalty)
            found[inside] = expit(features[inside] @ weights + bias)
    losses = {penalty: cross_entropy(difficulties, found) for penalty, found in held_out.items()}
    best = min(losses, key=lambda penalty: losses[penalty])
    weights, bias = fit(features, difficulties, best)
    fitted = FittedRouter(
        tuple(weights.astype(np.float32).tolist()), bias, losses[best], cross_entropy(difficulties, constant)
    )
    return fitted, held_out[best]


def ngram_features(texts: Texts, buckets: int) -> csr_array:
    """Return queries as vectors of n-grams with a norm of 1, [n, buckets].

    Args:
        texts: Text of each query, or the two texts of a pair, [n].
        buckets: Number of buckets.
    """
    active = [ngram_buckets([text.encode() for text in query], buckets) for query in texts]
    counts = np.array([len(each) for each in active])
    values = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    columns = np.concatenate([*active, np.empty(0, np.int64)])
    return csr_array((values, columns, np.concatenate([[0], np.cumsum(counts)])), shape=(len(texts), buckets))


def fit(features: csr_array, targets: Floats, penalty: float) -> tuple[Floats, float]:
    """Return the weights and the bias with the least summed cross-entropy plus penalty / 2 · |weights|².

    Args:
        features: Features of the queries, [n, m].
        targets: Probabilities, [n].
        penalty: Weight of the regularisation, above 0; the bias is not regularised.
    """

    def objective(parameters: Floats) -> tuple[float, Floats]:
        weights, bias = parameters[:-1], parameters[-1]
        odds = features @ weights + bias
        value = float((np.logaddexp(0, odds) - targets * odds).sum() + penalty / 2 * weights @ weights)
        error = expit(odds) - targets
        return value, np.append(features.T @ error + penalty * weights, error.sum())

    found = minimize(objective, np.zeros(features.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x[:-1], np.float64), float(found.x[-1])


def cross_entropy(targets: Floats, estimates: Floats) -> float:
    """Return the mean cross-entropy of estimates of probabilities.

    Args:
        targets: Probabilities, [n].
        estimates: Estimates, [n]; clipped to 1e-6 and 1 - 1e-6.
    """
    clipped = np.clip(estimates, 1e-6, 1 - 1e-6)
    return float(-(targets * np.log(clipped) + (1 - targets) * np.log1p(-clipped)).mean())
