"""The beams of one prompt together with the slots that hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from tidal.flover.beams.search import BeamHypothesis, BeamSearch, BeamSettings
from tidal.flover.beams.slot_assignment import BeamSlots
from tidal.flover.memory.slots import SlotCopy


class BeamGroup:
    """The beam search of one prompt: input token of each slot, and the copies to make after a step.

    Slots are indices among the prompt's own slots, from 0.

    Args:
        settings: Settings of the search.
        prompt: Token ids of the prompt.
        max_tokens: Largest number of tokens to generate.
        eos: Token ids that end a text.
        vocabulary: Size of the model's vocabulary.
    """

    def __init__(
        self, settings: BeamSettings, prompt: Sequence[int], max_tokens: int, eos: Collection[int], vocabulary: int
    ) -> None:
        self._search = BeamSearch(settings, prompt, max_tokens, eos, vocabulary)
        self._slots = BeamSlots(settings.beams)
        self._prompt_tokens = len(prompt)

    @property
    def slots(self) -> Sequence[int]:
        """Slot of each beam, in the order in which `advance` takes logits."""
        return self._slots.of_beams

    @property
    def length(self) -> int:
        """Number of tokens generated for each beam."""
        return self._search.length

    @property
    def ended(self) -> bool:
        """Whether the search has ended."""
        return self._search.ended

    @property
    def best(self) -> BeamHypothesis:
        """The best text, once the search has ended."""
        return self._search.best

    def last_token(self, slot: int) -> int:
        """Latest token of the beam in a slot, whose keys and values are not held yet."""
        return self._search.tokens[self._slots.of_beams.index(slot)][-1]

    def advance(self, logits: torch.Tensor) -> tuple[SlotCopy, ...]:
        """Extend every beam by one token.

        Args:
            logits: float32 [beams, vocabulary], in the order of `slots`; [1, vocabulary] after the prompt.

        Returns:
            Copies between the slots to make before the next step; none if the search has ended.

        Raises:
            ArithmeticError: Logits are NaN or infinite.
        """
        length = self.length
        parents = self._search.advance(logits)
        return () if self.ended else self._slots.reorder(parents, self._prompt_tokens + length)
