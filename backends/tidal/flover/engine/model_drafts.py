"""Drafts by a draft model, and their acceptance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from logging import Logger

from tidal.flover.engine.draft_model import DraftModel
from tidal.flover.engine.drafts import PassDraft
from tidal.flover.generation import Generation
from tidal.flover.policies.drafting import Candidate, DraftingPolicy
from tidal.flover.policies.speculation import Draft, DraftAcceptance
from tidal.flover.sampling import Sampler

# Weight of the newest draft in the mean acceptance of all generations.
_PRIOR_WEIGHT = 1 / 32
# Number of passes after which it is decided again where drafts do not pay, as that takes a share of a short pass.
_UNPAID_PASSES = 16
# Number of passes without the model after one of its passes has failed.
_REST_PASSES = 512

FitsDrafts = Callable[[Mapping[Generation, Sequence[int]]], bool]


class ModelDrafts:
    """Drafts of running generations by a draft model.

    Args:
        model: The draft model; owned by the object.
        policy: Policy of its drafts; owned by the object.
        most: Most tokens of a draft.
        acceptance: Probability that a token is accepted, before the first draft.
        log: Logger of the model that it drafts for.
    """

    def __init__(self, model: DraftModel, policy: DraftingPolicy, *, most: int, acceptance: float, log: Logger) -> None:
        self.model = model
        self._log = log
        self._policy, self._most = policy, most
        self._prior = DraftAcceptance(acceptance, _PRIOR_WEIGHT)
        self._acceptance: dict[Generation, DraftAcceptance] = {}
        self._next_at = 0  # number of the pass before which it is decided again

    def draft(
        self, running: Sequence[Generation], lookups: Mapping[Generation, PassDraft], load: tuple[int, int],
        number: int, fits: FitsDrafts,
    ) -> tuple[list[PassDraft], float]:  # fmt: skip
        """Draft tokens of the generations for which that pays.

        Args:
            running: Generations that run.
            lookups: Drafts by prompt lookup; those of higher acceptance than the model's are kept.
            load: Number of running sequences, and mean number of tokens that they hold.
            number: Number of the pass.
            fits: Whether the memory suffices for drafted tokens, by generation.

        Returns:
            The drafts, and the time that they are predicted to take, in seconds; none if a pass of the model failed.
        """
        if number < self._next_at:
            return [], 0.0
        self.model.follow(running)
        candidates = {generation: each for generation in running if (each := self._candidate(generation, lookups))}
        others = [each.draft for generation, each in lookups.items() if generation not in candidates]
        plan = self._policy.plan(list(candidates.values()), others, *load, number)
        generations = list(candidates)
        wanted = {generations[index]: drafting for index, drafting in plan.draftings.items()}
        if not wanted or not fits({each: [0] * drafting.depth for each, drafting in wanted.items()}):
            self._policy.rested()
            self._next_at = number + _UNPAID_PASSES
            return [], 0.0
        began = time.monotonic()
        try:
            drafts = self.model.draft(wanted)
        except Exception as error:
            self._log.warning("the draft model failed; steps run without it for a while: %s", error)
            self._next_at = number + _REST_PASSES
            return [], 0.0
        if len(drafts) == sum(drafting.depth > 0 for drafting in wanted.values()):  # else no slot or memory was left
            self._policy.measured(plan, time.monotonic() - began)
        acceptance = self._acceptance
        made = [PassDraft(each, "model", tokens, (acceptance[each], self._prior)) for each, tokens in drafts.items()]
        return made, plan.seconds

    def forget(self, generation: Generation) -> None:
        """Forget a generation that has ended; its slot is freed before the next draft."""
        self._acceptance.pop(generation, None)

    def repair(self) -> int:
        """Clear slots of the model with NaN or infinite values, and return their number; for idle moments."""
        if repaired := self.model.repair():
            self._log.error("cleared slots %s of the draft model, which held NaN or infinite values", repaired)
        return len(repaired)

    def _candidate(self, generation: Generation, lookups: Mapping[Generation, PassDraft]) -> Candidate | None:
        """A generation as the policy sees it; None if it cannot be drafted for, or prompt lookup drafts better."""
        if not isinstance(generation.method, Sampler):
            return None
        most = min(self._most, self.model.room(generation))
        if (acceptance := self._acceptance.get(generation)) is None:
            acceptance = self._acceptance[generation] = DraftAcceptance(self._prior.mean)
        lookup = lookups.get(generation)
        if not most or (lookup is not None and lookup.draft.acceptance >= acceptance.mean):
            return None
        return Candidate(
            Draft(most, acceptance.mean),
            None if lookup is None else lookup.draft,
            self.model.uncached(generation),
            generation.max_tokens - len(generation.tokens),
        )
