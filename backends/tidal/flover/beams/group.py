"""A prompt's beams with the seats that they lie in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from tidal.flover.beams.places import Places
from tidal.flover.beams.search import BeamSearch, BeamSettings, Text
from tidal.flover.memory.slots import Copy


class BeamGroup:
    """The beams of one prompt: what each of its seats is to be fed, and what to copy after a step.

    Args:
        settings: how to search.
        prompt: token ids.
        most_tokens: to generate at most.
        eos: tokens that end a text.
        vocabulary: tokens of the model.
    """

    def __init__(
        self, settings: BeamSettings, prompt: Sequence[int], most_tokens: int, eos: Collection[int], vocabulary: int
    ) -> None:
        self._search = BeamSearch(settings, prompt, most_tokens, eos, vocabulary)
        self._places = Places(settings.beams)
        self._prompt = len(prompt)

    @property
    def seats(self) -> Sequence[int]:
        """The seat of each beam, in the order in which `advance` takes logits."""
        return self._places.seats

    @property
    def length(self) -> int:
        """Tokens that each beam has."""
        return self._search.length

    @property
    def ended(self) -> bool:
        """Whether the search has ended."""
        return self._search.ended

    @property
    def best(self) -> Text:
        """The best text, once the search has ended."""
        return self._search.best

    def last(self, seat: int) -> int:
        """The token of a seat's beam whose keys and values are not held yet."""
        return self._search.tokens[self._places.seats.index(seat)][-1]

    def advance(self, logits: torch.Tensor) -> tuple[Copy, ...]:
        """Let every beam go on by a token.

        Args:
            logits: float32 [beams, vocabulary], in the order of `seats`; [1, vocabulary] behind the prompt.

        Returns:
            What to copy from seat to seat before the next step; nothing where the search has ended.

        Raises:
            ArithmeticError: logits are no numbers.
        """
        length = self.length
        sources = self._search.advance(logits)
        return () if self.ended else self._places.follow(sources, self._prompt + length)
