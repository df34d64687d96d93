"""Drafts by prompt lookup: what followed the latest tokens where they occurred before, in the prompt or in the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidal.flover.engine.drafts import PassDraft
from tidal.flover.generation import Generation
from tidal.flover.policies.speculation import MOST_DRAFTED, DraftAcceptance
from tidal.flover.sampling import Sampler

# Numbers of latest tokens that are looked up, the longest first: longer matches are continued alike more often.
_LOOKED_UP = (3, 2)
#: Most passes between two lookups of a generation that find nothing that may pay: a lookup takes some microseconds.
MOST_RESTED = 8


class PromptLookup:
    """Tokens of a sequence, by the tokens before them.

    Args:
        tokens: Token ids of the sequence so far.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        # Index after the latest occurrence of some tokens that others follow.
        self._behind: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        held, behind = self._tokens, self._behind
        for token in tokens:
            end = len(held)
            for count in _LOOKED_UP:
                if end >= count:
                    behind[tuple(held[end - count :])] = end
            held.append(token)

    def draft(self, most: int) -> list[int]:
        """Return at most `most` tokens that may follow; none if the latest tokens did not occur before.

        A draft that reaches the end of the sequence continues with its own tokens, as in a loop.
        """
        held = self._tokens
        for count in _LOOKED_UP:
            if len(held) > count and (begin := self._behind.get(tuple(held[-count:]))) is not None:
                found = held[begin : begin + most]
                period = len(found)
                while len(found) < most:
                    found.append(found[len(found) - period])
                return found
        return []


@dataclass(slots=True)
class _LookedUp:
    """What is known of a generation's drafts.

    Attributes:
        lookup: Its prompt and the tokens up to its latest draft.
        acceptance: Estimate of the probability that a drafted token is accepted.
        rest: Number of passes between its lookups; a power of two, or 0.
        next_at: Number of the pass for which it is looked up again.
    """

    lookup: PromptLookup
    acceptance: DraftAcceptance
    rest: int = 0
    next_at: int = 0


class LookupDrafts:
    """Drafts of running generations by prompt lookup.

    Args:
        prior: Estimate of the acceptance of a generation whose drafts were not checked yet.
    """

    def __init__(self, prior: DraftAcceptance) -> None:
        self._prior = prior
        self._known: dict[Generation, _LookedUp] = {}

    def draft(self, running: Sequence[Generation], least: float, number: int) -> tuple[list[PassDraft], int]:
        """Draft tokens of generations, unless looking them up cannot pay now; none of beam searches.

        Args:
            running: Generations that run.
            least: DraftAcceptance below which no draft pays.
            number: Number of the pass.

        Returns:
            The drafts, and the number of the pass for which some generation is looked up again.
        """
        found, next_at = list[PassDraft](), number + MOST_RESTED
        for generation in running:
            if not isinstance(generation.method, Sampler):
                continue
            if (known := self._known.get(generation)) is None:
                lookup = PromptLookup(generation.prompt_ids.tolist())
                known = self._known[generation] = _LookedUp(lookup, DraftAcceptance(self._prior.mean))
            if number >= known.next_at:
                draft = self._look_up(generation, known, least, number)
                if draft:
                    found.append(PassDraft(generation, "lookup", draft, (known.acceptance, self._prior)))
            next_at = min(next_at, known.next_at)
        return found, next_at

    def retry(self, generation: Generation, number: int) -> None:
        """Look a generation up for a pass, whose drafts may pay again, unless it has ended."""
        if (known := self._known.get(generation)) is not None:
            known.rest, known.next_at = 0, number

    def forget(self, generation: Generation) -> None:
        """Forget a generation that has ended."""
        self._known.pop(generation, None)

    def _look_up(self, generation: Generation, known: _LookedUp, least: float, number: int) -> list[int]:
        known.lookup.extend(generation.tokens[len(known.lookup) - generation.prompt_tokens :])
        # A text's last token is never an input, so drafts stay within the slot, too.
        most = min(MOST_DRAFTED, generation.max_tokens - len(generation.tokens) - 1)
        draft = known.lookup.draft(most) if most > 0 else []
        known.rest = 0 if draft and known.acceptance.mean >= least else min(max(2 * known.rest, 1), MOST_RESTED)
        # The lookups of all that rest fall on the same passes.
        step = max(known.rest, 1)
        known.next_at = (number // step + 1) * step
        return draft
