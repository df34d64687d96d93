"""The search for the sparsity of a checkpoint's differences. Pure: what a step is measured with is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Shares of the linear weights that stay the base's, from the smallest task to all differences.
LADDER = (0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class SparsityStep:
    """A sparsity and what was measured at it.

    Attributes:
        sparsity: share of the linear weights that stay the base's.
        score: of the task's answers beside the source's, 1 for equal ones: agreement, or with labelled queries
            1 - the accuracy that is lost.
        figure: the score as it is printed.
    """

    sparsity: float
    score: float
    figure: str

    def __str__(self) -> str:
        """For messages."""
        return f"{self.figure} at {self.sparsity:g}"


def climb(
    measure: Callable[[float], SparsityStep], min_score: float, ladder: Sequence[float] = LADDER
) -> list[SparsityStep]:
    """Measure a ladder of sparsities from the sparsest until one reaches the bound.

    Args:
        measure: measures one sparsity.
        least: score that is accepted.
        ladder: sparsities, descending.

    Returns:
        What was measured, in order; the last step is the only one that reached the bound, or none did.
    """
    steps: list[SparsityStep] = []
    for sparsity in ladder:
        steps.append(measure(sparsity))
        if steps[-1].score >= min_score:
            break
    return steps


def best_step(steps: Sequence[SparsityStep]) -> SparsityStep:
    """The step with the highest score, the sparsest of equals."""
    return max(steps, key=lambda step: (step.score, step.sparsity))
