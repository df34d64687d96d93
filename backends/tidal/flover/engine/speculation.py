"""Drafts of running generations: what each pass checks of them, and what they gain."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.flover.engine.drafts import PassDraft
from tidal.flover.engine.lookup import MOST_RESTED, LookupDrafts
from tidal.flover.engine.model_drafts import FitsDrafts, ModelDrafts
from tidal.flover.generation import Generation
from tidal.flover.policies.committed import CommittedMemory
from tidal.flover.policies.speculation import CheckedDrafts, DraftSource, SpeculationPolicy


class Speculation:
    """Drafts of running generations and their acceptance.

    Prompt lookup drafts first; where its drafts are accepted more rarely than those of the draft model, or it finds
    none, the draft model does if there is one.

    A token that is sampled where the draft ends or differs is the generation's own: each token comes from the model's
    distribution after the tokens before it, with the generation's own random numbers, as without drafts.

    Args:
        policy: Policy of the passes that check drafts; owned by the object.
        model: Drafts by a draft model; owned by the object. None: there is none.
    """

    def __init__(self, policy: SpeculationPolicy, model: ModelDrafts | None = None) -> None:
        self._policy = policy
        self._lookups, self._model = LookupDrafts(policy.prior), model
        self._drafted: list[PassDraft] = []  # for the present pass
        self._load: tuple[int, int] | None = None  # slots of the present pass, and mean number of tokens that they hold
        self._pass = 0  # number of the present pass
        self._next_at = 0  # number of the pass for which something is drafted again

    @property
    def memory(self) -> tuple[CommittedMemory, ...]:
        """Memory committed to the slots of the draft model, if there is one."""
        return () if self._model is None else (self._model.model.memory,)

    def due(self) -> bool:
        """Count the next pass; return whether some generation may have a draft for it: then call `select`."""
        self._pass += 1
        return self._pass >= self._next_at

    def select(self, running: Sequence[Generation], fits: FitsDrafts) -> dict[Generation, list[int]]:
        """Return the drafted tokens that the next pass checks, of the generations that have some.

        Args:
            running: Generations that run.
            fits: Whether the memory suffices for drafted tokens, by generation; otherwise none are checked.
        """
        self.drop()
        if any(generation.task is not None for generation in running):  # their passes have one row per slot
            return {}
        slots = sum(generation.slots for generation in running)
        held = sum(generation.slots * generation.held_tokens(0) for generation in running) // slots
        self._next_at = self._pass + MOST_RESTED
        least = self._policy.least_acceptance(slots, held)
        if least > 1:
            self._load = slots, held
            return {}
        looked_up, self._next_at = self._lookups.draft(running, least, self._pass)
        considered, spent = {each.generation: each for each in looked_up}, 0.0
        made: list[PassDraft] = []
        if self._model is not None:
            made, spent = self._model.draft(running, considered, (slots, held), self._pass, fits)
            considered |= {each.generation: each for each in made}
            if spent:
                self._next_at = self._pass + 1
        chosen = list(considered.values())
        counts = self._policy.select([each.draft for each in chosen], slots, held, spent)
        for each, count in zip(chosen, counts, strict=True):
            each.checked = count
        found = {each.generation: each.tokens[: each.checked] for each in chosen if each.checked}
        if found and not fits(found):
            return {}
        self._load, self._drafted = (slots, held), [*looked_up, *made]
        return found

    def passed(self, seconds: float) -> list[CheckedDrafts]:
        """Record a pass, after its tokens were appended, over the generations of the last `select` if that was for it.

        Args:
            seconds: Duration of the pass, with sampling and without drafting.

        Returns:
            Checked drafts, by source.
        """
        if self._load is None:
            return []
        found = dict[DraftSource, CheckedDrafts]()
        for each in self._drafted:
            alike, gained = each.observe()
            if each.checked:
                before = found.get(each.source, CheckedDrafts(each.source, 0, 0))
                found[each.source] = CheckedDrafts(each.source, before.checked + each.checked, before.gained + gained)
            elif alike and each.source == "lookup":  # its draft may pay soon
                self._next_at = self._pass + 1
                self._lookups.retry(each.generation, self._next_at)
        self._policy.measured(*self._load, sum(each.checked for each in found.values()), seconds)
        self.drop()
        return list(found.values())

    def drop(self) -> None:
        """Forget the drafts of a pass that did not run."""
        self._drafted, self._load = [], None

    def forget(self, generation: Generation) -> None:
        """Forget a generation that has ended."""
        self._lookups.forget(generation)
        if self._model is not None:
            self._model.forget(generation)

    def repair(self) -> int:
        """Clear slots of the draft model with NaN or infinite values, and return their number; for idle moments."""
        return 0 if self._model is None else self._model.repair()
