"""Compares an engine with the source model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from tidal.engine_model.manifest import MainOutput
from tidal.engines import Precision
from tidal.manifest import Verification
from tidal_builders.encoder_tasks.measures import Measure
from tidal_builders.samples import Row, batches

Outputs = Mapping[str, npt.NDArray[Any]]
# Pads queries to a batch and runs it; outputs have one row per query.
RunQueries = Callable[[list[Row]], Outputs]


class Verified(BaseModel):
    """Comparison of the final engines with the source model.

    Attributes:
        verification: Values for the manifest.
        errors: Largest error by length of the runtime; None where no sample has such a length.
        misses: Reasons why the engines are not published, one clause each.
    """

    verification: Verification
    errors: dict[int, float | None]
    misses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between an engine and the source model.

    Attributes:
        measure: Measure of the task.
        lengths: Length of each sample in tokens, shape [samples].
        error: Error of the main output, shape [samples].
        extra_error: Largest difference of any other output, as a share of the output's largest value, shape [samples].
        agreement: Agreement of the main output over all samples, 0 to 1.
    """

    measure: Measure
    lengths: npt.NDArray[np.int64]
    error: npt.NDArray[np.float64]
    extra_error: npt.NDArray[np.float64]
    agreement: float

    def verification(self, precision: Precision, tolerance: float | None) -> Verification:
        """The values that a manifest records.

        Args:
            precision: Precision of the engine.
            tolerance: Accepted error of the spec; None for the default of the precision.
        """
        limit, _ = self.measure.limits(precision, tolerance)
        labels = self.measure.agreement_name == "argmax"
        return Verification(
            samples=len(self.lengths),
            max_abs_error=float(self.error.max()),
            tolerance=limit,
            argmax_agreement=self.agreement if labels else None,
            agreements={} if labels else {self.measure.agreement_name: self.agreement},
        )

    def max_error(self, above: int, upto: int) -> float | None:
        """Largest error of samples with `above` < length <= `upto` tokens; None if there are none."""
        inside = (self.lengths > above) & (self.lengths <= upto)
        return float(self.error[inside].max()) if inside.any() else None

    def shortfalls(self, precision: Precision, tolerance: float | None) -> list[str]:
        """Reasons why a result is not published, one clause each; empty if it is within the tolerance.

        Args:
            precision: Precision of the engine.
            tolerance: Accepted error of the spec; None for the default of the precision.
        """
        measure = self.measure
        limit, least = measure.limits(precision, tolerance)
        error, extra = float(self.error.max()), float(self.extra_error.max())
        clauses = []
        if not error <= limit:
            worst = int(self.lengths[self.error.argmax()])
            clauses.append(
                f"{measure.error_name} {error:.3g} exceeds the tolerance {limit:g} by a factor of "
                f"{error / limit:.1f} (query of {worst} tokens)"
            )
        if not self.agreement >= least:
            clauses.append(measure.miss.format(self.agreement, least))
        if not extra <= limit:
            clauses.append(f"attention_received differs by {extra:.3g} of its largest value; {limit:g} is accepted")
        return clauses


def compare_with_source(
    run: RunQueries,
    rows: Sequence[Row],
    expected: Sequence[Outputs],
    main: MainOutput,
    measure: Measure,
    max_batch: int,
) -> Comparison:
    """Run samples in batches of mixed lengths, and compare with the source model's outputs for each alone.

    Args:
        run: Runs the engine on some queries.
        rows: Samples.
        expected: The source model's outputs for each sample.
        main: Output that the task's answers are computed from.
        measure: Measure of the task.
        max_batch: Maximum batch size.
    """
    error, extra_error = np.zeros(len(rows)), np.zeros(len(rows))
    answers: list[npt.NDArray[Any]] = [np.empty(0)] * len(rows)
    for group in batches(rows, max_batch, seed=0):
        got = run([rows[i] for i in group])
        for number, i in enumerate(group):
            values = got[main.name][number]
            answers[i] = values[: len(rows[i]["input_ids"])] if main.per_token else values
            error[i] = measure.error(answers[i], expected[i][main.name])
            for name, wanted in expected[i].items():
                if name != main.name:
                    extra = np.abs(got[name][number][: len(wanted)] - wanted).max() / np.abs(wanted).max()
                    extra_error[i] = np.inf if np.isnan(extra) else max(extra_error[i], extra)
    agreement = measure.agreement(answers, [each[main.name] for each in expected])
    return Comparison(measure, np.asarray([len(row["input_ids"]) for row in rows]), error, extra_error, agreement)
