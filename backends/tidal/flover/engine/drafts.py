"""A draft for one pass, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidal.flover.generation import Generation
from tidal.flover.policies.speculation import Draft, DraftAcceptance, DraftSource


@dataclass(slots=True)
class PassDraft:
    """Tokens that a generation may continue with in the present pass.

    Attributes:
        generation: The generation.
        source: Prompt lookup or a draft model.
        tokens: Token ids, at least one.
        acceptances: Estimates of the probability that a token is accepted; the first is the generation's own.
        before: Number of tokens that the generation had.
        checked: Number of tokens that the pass checks.
    """

    generation: Generation
    source: DraftSource
    tokens: list[int]
    acceptances: tuple[DraftAcceptance, ...]
    before: int = field(init=False)
    checked: int = 0

    def __post_init__(self) -> None:
        self.before = len(self.generation.tokens)

    @property
    def draft(self) -> Draft:
        """The draft as the policy sees it."""
        return Draft(len(self.tokens), self.acceptances[0].mean)

    def observe(self) -> tuple[int, int]:
        """Record the outcome of the pass, after its tokens were appended.

        A draft that the pass did not check still shows whether its first token would have been accepted.

        Returns:
            Numbers of tokens that would have been accepted, and of tokens gained by the draft.
        """
        new = self.generation.tokens[self.before :]
        compared = min(max(self.checked, 1), len(new))
        alike = _count_alike(self.tokens[:compared], new)
        for acceptance in self.acceptances:
            acceptance.observe(alike, alike < compared)
        return alike, max(len(new) - 1, 0) if self.checked else 0


def _count_alike(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    for count, (drafted, token) in enumerate(zip(draft, tokens, strict=False)):
        if drafted != token:
            return count
    return min(len(draft), len(tokens))
