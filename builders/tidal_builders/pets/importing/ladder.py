"""The search for the sparsity of a checkpoint's differences. Pure: the caller measures each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Shares of the linear weights that stay the base's, from the smallest task to all differences.
LADDER = (0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class SparsityStep:
    """A sparsity and its measured score.

    Attributes:
        sparsity: Share of the linear weights that stay the base's.
        score: Score of the task's answers compared with the source's, 1 for equal ones: agreement, or with labelled
            queries 1 minus the accuracy that is lost.
        figure: The score as it is printed.
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
        measure: Measures one sparsity.
        min_score: Least score that is accepted.
        ladder: Sparsities, descending.

    Returns:
        The measured steps in order; only the last one may have reached the bound.
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
