"""How a task is trained: the published sizes of each kind, and rates for a few passes over a few thousand texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidal.errors import InvalidArgument

# Of what a kind adds or changes. Masks move over a threshold or not at all, so that their scores take long steps.
RATES: Mapping[str, float] = {
    "adapter": 1e-3, "bitfit": 2e-3, "diff_pruning": 2e-4, "lora": 1e-3, "maskbert": 1e-2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Of one training.

    Attributes:
        epochs: passes over all texts.
        batch: texts in a step.
        rate: of what the kind adds or changes; None takes the kind's of `RATES`.
        head_rate: of the classifier, which starts from random values.
        longest: tokens that a text is cut to.
        seed: of all that is drawn.
        bottleneck: width of adapters.
        rank: of low-rank differences; their scale is 2.
        masked: share of every weight matrix that a mask sets to 0.
        kept: share of every weight matrix that diff pruning changes.
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

        Raises:
            InvalidArgument: the kind is none that is trained here.
        """
        if kind not in RATES:
            raise InvalidArgument(f"tasks of the kind '{kind}' are not trained here; accepted: {', '.join(RATES)}")
        return RATES[kind] if self.rate is None else self.rate
