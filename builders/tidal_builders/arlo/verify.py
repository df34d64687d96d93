"""How far an engine is from the source model."""

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

Answers = Mapping[str, npt.NDArray[Any]]
# Pads queries to a batch and runs it; outputs have one row a query.
Run = Callable[[list[Row]], Answers]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of single samples. Shapes [samples]."""

    lengths: npt.NDArray[np.int64]
    logit_error: npt.NDArray[np.float64]
    extra_error: npt.NDArray[np.float64]  # of other outputs, as a share of the sample's largest value
    same_label: npt.NDArray[np.bool_]

    def verification(self, tolerance: float) -> Verification:
        """The figures that a manifest records."""
        return Verification(
            samples=len(self.lengths),
            max_abs_error=float(self.logit_error.max()),
            tolerance=tolerance,
            argmax_agreement=float(self.same_label.mean()),
        )

    def max_error(self, above: int, upto: int) -> float | None:
        """Largest logit error among samples of `above` < length <= `upto`; None where there are none."""
        inside = (self.lengths > above) & (self.lengths <= upto)
        return float(self.logit_error[inside].max()) if inside.any() else None


def compare(run: Run, rows: Sequence[Row], answers: Sequence[Answers], max_batch: int) -> Comparison:
    """Run samples in batches of mixed lengths and compare with what the source model answered to each alone."""
    logit_error, extra_error = np.zeros(len(rows)), np.zeros(len(rows))
    same = np.zeros(len(rows), np.bool_)
    for group in batches(rows, max_batch, seed=0):
        got = run([rows[i] for i in group])
        for place, i in enumerate(group):
            difference = np.abs(got["logits"][place] - answers[i]["logits"])
            # A value that is not a number is no small error.
            logit_error[i] = np.inf if np.isnan(difference).any() else difference.max()
            same[i] = got["logits"][place].argmax() == answers[i]["logits"].argmax()
            for name, wanted in answers[i].items():
                if name != "logits":
                    error = np.abs(got[name][place][: len(wanted)] - wanted).max() / np.abs(wanted).max()
                    extra_error[i] = np.inf if np.isnan(error) else max(extra_error[i], error)
    return Comparison(np.asarray([len(row["input_ids"]) for row in rows]), logit_error, extra_error, same)


def tolerance(spec: ArloSpec, precision: Precision) -> float:
    """Largest accepted difference of any logit."""
    return spec.tolerance if spec.tolerance is not None else DEFAULT_TOLERANCE[precision]


def shortfalls(comparison: Comparison, spec: ArloSpec, precision: Precision) -> list[str]:
    """What keeps a result from being published, a clause each; empty when it may be."""
    limit, least = tolerance(spec, precision), LEAST_AGREEMENT[precision]
    found = comparison.verification(limit)
    said = []
    if not found.max_abs_error <= limit:
        worst = int(comparison.lengths[comparison.logit_error.argmax()])
        said.append(
            f"largest logit error {found.max_abs_error:.3g} exceeds the tolerance {limit:g} by a factor of "
            f"{found.max_abs_error / limit:.1f} (query of {worst} tokens)"
        )
    if found.argmax_agreement < least:
        said.append(f"{found.argmax_agreement:.1%} of the samples keep their label, {least:.0%} must")
    extra = float(comparison.extra_error.max())
    if not extra <= limit:
        said.append(f"attention_received is off by {extra:.3g} of its largest value, {limit:g} is accepted")
    return said
