"""Training settings: sizes of each kind as published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of one training.

    Attributes:
        epochs: Number of passes over all texts.
        batch: Number of texts per step.
        rate: Learning rate of what the kind adds or changes; None: the kind's.
        head_rate: Learning rate of the classifier, which starts from random values.
        longest: Number of tokens at which texts are truncated.
        seed: Seed of all random numbers.
        bottleneck: Width of adapters.
        rank: Rank of low-rank differences; their scale is 2.
        masked_share: Share of every weight matrix that a mask sets to 0.
        changed_share: Share of every weight matrix that diff pruning changes.
    """

    epochs: int = 3
    batch: int = 32
    rate: float | None = None
    head_rate: float = 2e-3
    longest: int = 128
    seed: int = 0
    bottleneck: int = 64
    rank: int = 8
    masked_share: float = 0.05
    changed_share: float = 0.005
