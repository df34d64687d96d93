"""What the scheduler knows of generations, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Generation:
    """One sequence, from its prompt to its last token.

    Attributes:
        arrival: seconds, on the clock that `FloverScheduler.next` is told.
        deadline: of its last token, infinite where there is none.
        prompt: tokens of its prompt, at least 1.
    """

    arrival: float
    deadline: float
    prompt: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Read tokens `start` up to, not including, `end` of a prompt."""

    generation: Generation
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Whether the prompt ends here: its generation joins the step of the same iteration."""
        return self.end == self.generation.prompt


@dataclass(frozen=True, slots=True)
class Iteration:
    """What comes next, in this order; a step of all that run follows.

    Attributes:
        refused: leave the queue, since their first token would come too late.
        admitted: leave the queue and get a slot each.
        chunks: of prompts, to be read one after the other.
    """

    refused: tuple[Generation, ...]
    admitted: tuple[Generation, ...]
    chunks: tuple[Chunk, ...]
