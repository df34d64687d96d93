"""Training settings: sizes of each kind as published, and learning rates for a few epochs of a few thousand texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidal.errors import InvalidArgument

# Learning rates of what a kind adds or changes. A mask changes only when a score crosses the threshold: long steps.
RATES: Mapping[str, float] = {
    "adapter": 1e-3, "bitfit": 2e-3, "diff_pruning": 2e-4, "lora": 1e-3, "maskbert": 1e-2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of one training.

    Attributes:
        epochs: Number of passes over all texts.
        batch: Number of texts per step.
        rate: Learning rate of what the kind adds or changes; None: the kind's in `RATES`.
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

    def rate_of(self, kind: str) -> float:
        """The learning rate of what a kind adds or changes.

        Args:
            kind: Name of the kind.

        Raises:
            InvalidArgument: Tasks of this kind cannot be trained.
        """
        if kind not in RATES:
            raise InvalidArgument(f"tasks of the kind '{kind}' cannot be trained; accepted: {', '.join(RATES)}")
        return RATES[kind] if self.rate is None else self.rate
