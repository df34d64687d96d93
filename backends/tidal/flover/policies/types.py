"""What the scheduler knows of generations, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Generation:
    """What one prompt is written on by, from its prompt to its last token: one sequence, or its beams.

    Attributes:
        arrival: seconds, on the clock that `FloverScheduler.next` is told.
        deadline: of its last token, infinite where there is none.
        prompt: tokens of its prompt, at least 1.
        slots: that it takes, all at the same time: one for each beam.
    """

    arrival: float
    deadline: float
    prompt: int
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """Read tokens `start` up to, not including, `end` of a prompt."""

    generation: Generation
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Whether the prompt ends here: its generation joins the next step."""
        return self.end == self.generation.prompt


@dataclass(frozen=True, slots=True)
class Iteration:
    """What comes next, in this order; a step of all that run follows.

    Attributes:
        refused: leave the queue, since their first token would come too late.
        admitted: leave the queue and get their slots.
        chunks: of prompts, at most one of each.
    """

    refused: tuple[Generation, ...]
    admitted: tuple[Generation, ...]
    chunks: tuple[Chunk, ...]
