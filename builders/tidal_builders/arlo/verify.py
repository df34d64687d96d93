"""Compares an engine with the source model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.engines import Precision
from tidal.manifest import Verification
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.samples import Row, batches
from tidal_builders.tolerances import DEFAULT_TOLERANCE, LEAST_AGREEMENT

Outputs = Mapping[str, npt.NDArray[Any]]
# Pads queries to a batch and runs it; outputs have one row per query.
RunQueries = Callable[[list[Row]], Outputs]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between an engine and the source model.

    Attributes:
        lengths: Length of each sample in tokens, shape [samples].
        logit_error: Largest absolute difference of any logit, shape [samples].
        extra_error: Largest difference of any other output, as a share of the output's largest value, shape [samples].
        same_label: Whether the largest logit is that of the same label, shape [samples].
    """

    lengths: npt.NDArray[np.int64]
    logit_error: npt.NDArray[np.float64]
    extra_error: npt.NDArray[np.float64]
    same_label: npt.NDArray[np.bool_]

    def verification(self, tolerance: float) -> Verification:
        """The values that a manifest records; `tolerance` is the accepted logit error."""
        return Verification(
            samples=len(self.lengths),
            max_abs_error=float(self.logit_error.max()),
            tolerance=tolerance,
            argmax_agreement=float(self.same_label.mean()),
        )

    def max_error(self, above: int, upto: int) -> float | None:
        """Largest logit error of samples with `above` < length <= `upto` tokens; None if there are none."""
        inside = (self.lengths > above) & (self.lengths <= upto)
        return float(self.logit_error[inside].max()) if inside.any() else None


def compare_with_source(
    run: RunQueries, rows: Sequence[Row], expected: Sequence[Outputs], max_batch: int
) -> Comparison:
    """Run samples in batches of mixed lengths, and compare with the source model's outputs for each alone.

    Args:
        run: Runs the engine on some queries.
        rows: Samples.
        expected: The source model's outputs for each sample.
        max_batch: Maximum batch size.
    """
    logit_error, extra_error = np.zeros(len(rows)), np.zeros(len(rows))
    same = np.zeros(len(rows), np.bool_)
    for group in batches(rows, max_batch, seed=0):
        got = run([rows[i] for i in group])
        for number, i in enumerate(group):
            difference = np.abs(got["logits"][number] - expected[i]["logits"])
            # NaN compares as false and would pass any limit.
            logit_error[i] = np.inf if np.isnan(difference).any() else difference.max()
            same[i] = got["logits"][number].argmax() == expected[i]["logits"].argmax()
            for name, values in expected[i].items():
                if name != "logits":
                    error = np.abs(got[name][number][: len(values)] - values).max() / np.abs(values).max()
                    extra_error[i] = np.inf if np.isnan(error) else max(extra_error[i], error)
    return Comparison(np.asarray([len(row["input_ids"]) for row in rows]), logit_error, extra_error, same)


def tolerance(spec: ArloSpec, precision: Precision) -> float:
    """Accepted difference of any logit: the spec's, or the default of the precision."""
    return spec.tolerance if spec.tolerance is not None else DEFAULT_TOLERANCE[precision]


def shortfalls(comparison: Comparison, spec: ArloSpec, precision: Precision) -> list[str]:
    """Reasons why a result is not published, one clause each; empty if it is within the tolerance."""
    limit, least = tolerance(spec, precision), LEAST_AGREEMENT[precision]
    verification = comparison.verification(limit)
    clauses = []
    if not verification.max_abs_error <= limit:
        worst = int(comparison.lengths[comparison.logit_error.argmax()])
        clauses.append(
            f"largest logit error {verification.max_abs_error:.3g} exceeds the tolerance {limit:g} by a factor of "
            f"{verification.max_abs_error / limit:.1f} (query of {worst} tokens)"
        )
    if verification.argmax_agreement < least:
        clauses.append(
            f"{verification.argmax_agreement:.1%} of the samples keep their label; at least {least:.0%} must"
        )
    extra = float(comparison.extra_error.max())
    if not extra <= limit:
        clauses.append(f"attention_received differs by {extra:.3g} of its largest value; {limit:g} is accepted")
    return clauses
