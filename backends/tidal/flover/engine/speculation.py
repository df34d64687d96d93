"""Drafts by prompt lookup: what followed the latest tokens where they occurred before, in the prompt or in the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidal.flover.generation import Generation
from tidal.flover.policies.speculation import MOST_DRAFTED, Draft, DraftAcceptance, SpeculationPolicy
from tidal.flover.sampling import Sampler

# Numbers of latest tokens that are looked up, the longest first: longer matches are continued alike more often.
_LOOKED_UP = (3, 2)
# Most passes between two lookups of a generation that find nothing that may pay: a lookup takes some microseconds.
_MOST_RESTED = 8


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
class _Drafting:
    """What is known of a generation's drafts.

    Attributes:
        lookup: Its prompt and the tokens up to its latest draft.
        acceptance: Estimate of the probability that a drafted token is accepted.
        draft: Its latest draft.
        checked: Number of tokens of the draft that the present pass checks.
        rest: Number of passes between its lookups; a power of two, or 0.
        next_at: Number of the pass for which it is looked up again.
    """

    lookup: PromptLookup
    acceptance: DraftAcceptance
    draft: list[int] = field(default_factory=list)
    checked: int = 0
    rest: int = 0
    next_at: int = 0


class Speculation:
    """Drafts of running generations and their acceptance.

    A token that is sampled where the draft ends or differs is the generation's own: each token comes from the model's
    distribution after the tokens before it, with the generation's own random numbers, as without drafts. A draft that
    the pass does not check still shows whether its first token would have been accepted.

    Args:
        policy: Policy of the drafts; owned by the object.
    """

    def __init__(self, policy: SpeculationPolicy) -> None:
        self._policy = policy
        self._drafting: dict[Generation, _Drafting] = {}
        self._drafted: list[tuple[Generation, _Drafting]] = []  # with a draft for the present pass
        self._load: tuple[int, int] | None = None  # slots of the present pass, and mean number of tokens that they hold
        self._pass = 0  # number of the present pass
        self._next_at = 0  # number of the pass for which some generation is looked up again

    def due(self) -> bool:
        """Count the next pass; return whether some generation may have a draft for it: then call `select`."""
        self._pass += 1
        return self._pass >= self._next_at

    def select(self, running: Sequence[Generation]) -> dict[Generation, list[int]]:
        """Return the drafted tokens that the next pass checks, of the generations that have some.

        Args:
            running: Generations that run.
        """
        self.drop()
        if any(generation.task is not None for generation in running):  # their passes have one row per slot
            return {}
        slots = sum(generation.slots for generation in running)
        held = sum(generation.slots * generation.held_tokens(0) for generation in running) // slots
        self._load = slots, held
        self._next_at = self._pass + _MOST_RESTED
        least = self._policy.least_acceptance(slots, held)
        if least > 1:
            return {}
        for generation in running:
            drafting = self._look_up(generation, least)
            if drafting is None:
                continue
            if drafting.draft:
                self._drafted.append((generation, drafting))
            self._next_at = min(self._next_at, drafting.next_at)
        drafts = [Draft(len(each.draft), each.acceptance.mean) for _, each in self._drafted]
        for (_, drafting), count in zip(self._drafted, self._policy.select(drafts, slots, held), strict=True):
            drafting.checked = count
        return {each: drafting.draft[: drafting.checked] for each, drafting in self._drafted if drafting.checked}

    def passed(self, seconds: float) -> tuple[int, int]:
        """Record a pass, after its tokens were appended, over the generations of the last `select` if that was for it.

        Args:
            seconds: Duration of the pass, with sampling.

        Returns:
            Numbers of drafted tokens that were checked, and of tokens gained by them.
        """
        checked = gained = 0
        if self._load is None:
            return checked, gained
        for generation, drafting in self._drafted:
            new = generation.tokens[len(drafting.lookup) - generation.prompt_tokens :]
            compared = min(max(drafting.checked, 1), len(new))
            alike = _count_alike(drafting.draft[:compared], new)
            for acceptance in (drafting.acceptance, self._policy.prior):
                acceptance.observe(alike, alike < compared)
            if drafting.checked:
                checked += drafting.checked
                gained += max(len(new) - 1, 0)
            elif alike:  # its draft may pay soon
                drafting.rest = 0
                drafting.next_at = self._next_at = self._pass + 1
        self._policy.measured(*self._load, checked, seconds)
        self.drop()
        return checked, gained

    def drop(self) -> None:
        """Forget the drafts of a pass that did not run."""
        self._drafted, self._load = [], None

    def forget(self, generation: Generation) -> None:
        """Forget a generation that has ended."""
        self._drafting.pop(generation, None)

    def _look_up(self, generation: Generation, least: float) -> _Drafting | None:
        """Draft tokens of a generation, unless looking them up cannot pay now; None for a beam search."""
        if not isinstance(generation.method, Sampler):
            return None
        drafting = self._drafting.get(generation)
        if drafting is None:
            lookup = PromptLookup(generation.prompt_ids.tolist())
            drafting = self._drafting[generation] = _Drafting(lookup, DraftAcceptance(self._policy.prior.mean))
        if self._pass < drafting.next_at:
            drafting.draft = []
            return drafting
        drafting.lookup.extend(generation.tokens[len(drafting.lookup) - generation.prompt_tokens :])
        # A text's last token is never an input, so drafts stay within the slot, too.
        most = min(MOST_DRAFTED, generation.max_tokens - len(generation.tokens) - 1)
        drafting.draft = drafting.lookup.draft(most) if most > 0 else []
        drafting.checked = 0
        if drafting.draft and drafting.acceptance.mean >= least:
            drafting.rest = 0
        else:
            drafting.rest = min(max(2 * drafting.rest, 1), _MOST_RESTED)
        # The lookups of all that rest fall on the same passes.
        step = max(drafting.rest, 1)
        drafting.next_at = (self._pass // step + 1) * step
        return drafting


def _count_alike(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    for count, (drafted, token) in enumerate(zip(draft, tokens, strict=False)):
        if drafted != token:
            return count
    return min(len(draft), len(tokens))
