"""Input and output of the scheduler: what it knows of a generation, and what it decides for one iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar


@dataclass(eq=False, slots=True)
class Schedulable:
    """One prompt and the text generated from it, as the scheduler sees it: one sequence, or one per beam.

    Attributes:
        arrival: Time of arrival in seconds, on the clock of `FloverScheduler.schedule`.
        deadline: Latest time for the last token in seconds, infinite without a deadline.
        prompt_tokens: Number of tokens of the prompt, at least 1.
        slots: Number of slots, allocated and freed together: one, or one per beam.
        max_tokens: Largest number of tokens to generate, at least 1.
        preempted: Whether it has lost its slots to others.
        recomputed: Number of generated tokens that are prefilled after the prompt; 0 unless it was preempted.
        uncleared: Bytes that the operating system clears all at once for the first tokens of its slots.
    """

    arrival: float
    deadline: float
    prompt_tokens: int
    slots: int = 1
    max_tokens: int = 1
    preempted: bool = field(default=False, init=False)
    recomputed: int = field(default=0, init=False)
    uncleared: int = field(default=0, init=False)

    @property
    def generated(self) -> int:
        """Number of tokens generated so far, per slot."""
        return 0

    @property
    def preemptible(self) -> bool:
        """Whether it may lose its slots and continue later."""
        return self.slots == 1

    @property
    def prefill_tokens(self) -> int:
        """Number of tokens to prefill before it runs: of the prompt, and of the text before a preemption."""
        return self.prompt_tokens + self.recomputed

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens that a slot ever holds."""
        return self.prompt_tokens + self.max_tokens

    @property
    def next_tokens(self) -> int:
        """Number of tokens for which a slot needs memory up to its next decode step; all of them without preemption."""
        if not self.preemptible:
            return self.most_tokens
        return max(self.prefill_tokens + 1, self.prompt_tokens + self.generated)

    def preempt(self) -> None:
        """Record that its slots were freed, and that its text so far has to be prefilled again."""
        self.preempted, self.recomputed = True, self.generated


Item = TypeVar("Item", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class PrefillChunk(Generic[Item]):
    """Tokens of one prompt, and of its text before a preemption, to prefill in an iteration.

    Attributes:
        item: Generation whose prompt is prefilled.
        start: Index of the chunk's first token in the prompt.
        end: Index after the chunk's last token.
    """

    item: Item
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Whether prefill ends with this chunk, so that its generation runs from now on."""
        return self.end == self.item.prefill_tokens


@dataclass(frozen=True, slots=True)
class Clearing(Generic[Item]):
    """Memory to clear in an iteration, beside its decode step.

    Attributes:
        item: Generation whose slots are cleared.
        seconds: Time after which no further part is cleared.
    """

    item: Item
    seconds: float


@dataclass(frozen=True, slots=True)
class Admission(Generic[Item]):
    """Generations that leave the queue.

    Attributes:
        refused: Generations whose first token would come after their deadline.
        admitted: Generations that get their slots.
    """

    refused: tuple[Item, ...]
    admitted: tuple[Item, ...]
