"""Input and output of the scheduler: what it knows of a generation, and what it decides for one iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(eq=False, slots=True)
class Schedulable:
    """One prompt and the text generated from it, as the scheduler sees it: one sequence, or one per beam.

    Attributes:
        arrival: Time of arrival in seconds, on the clock of `FloverScheduler.schedule`.
        deadline: Latest time for the last token in seconds, infinite without a deadline.
        prompt_tokens: Number of tokens of the prompt, at least 1.
        slots: Number of slots, allocated and freed together: one, or one per beam.
    """

    arrival: float
    deadline: float
    prompt_tokens: int
    slots: int = 1


Item = TypeVar("Item", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class PrefillChunk(Generic[Item]):
    """Tokens of one prompt to prefill in an iteration.

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
        """Whether the prompt ends with this chunk, so that its generation runs from now on."""
        return self.end == self.item.prompt_tokens


@dataclass(frozen=True, slots=True)
class Admission(Generic[Item]):
    """Generations that leave the queue.

    Attributes:
        refused: Generations whose first token would come after their deadline.
        admitted: Generations that get their slots.
    """

    refused: tuple[Item, ...]
    admitted: tuple[Item, ...]
