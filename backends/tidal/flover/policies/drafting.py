"""Drafting by a draft model: for which generations, how many tokens, and when the model prefills them.

A draft model takes a pass of its own for each token of a draft, shared by all generations that are drafted for. Before
the first one it prefills the tokens of a generation that it has no keys and values of: the uncached ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidal.flover.policies.costs import Pace, PassCosts
from tidal.flover.policies.speculation import Draft, SpeculationPolicy

# Least gain in tokens per second over the passes without a draft model: deciding and sampling take time, too.
_LEAST_GAIN = 1.04
# Most uncached tokens, the latest one included, of a generation that can be drafted for in the next pass.
_NEAR = 16
# A generation that has more is prefilled if that takes at most this share of the time that its drafts are to save.
_LEAST_RETURN = 1 / 2
# It is prefilled in the time of the bound times this share, so that drafts can still be checked.
_PREFILL_SHARE = 1 / 2
# Fewest tokens to prefill before a pass, as fewer take almost as long, and most, for which the memory is planned.
_LEAST_PREFILLED, _MOST_PREFILLED = 16, 512
# Number of passes after which a token is drafted where drafts do not pay, to learn whether they would.
_PROBE_PASSES = 128
# Number of passes after which it is considered again where even accepted drafts would not pay.
_UNPAID_PASSES = 16


class Candidate(NamedTuple):
    """A generation that can be drafted for.

    Attributes:
        draft: The longest draft, with its acceptance.
        lookup: Its draft by prompt lookup, which takes no time, of lower acceptance; None without one.
        uncached: Number of its tokens without keys and values in the model, at least the latest one.
        remaining: Most tokens that it still generates.
    """

    draft: Draft
    lookup: Draft | None
    uncached: int
    remaining: int


class Drafting(NamedTuple):
    """Work of the model for a generation before the next pass.

    Attributes:
        tokens: Number of its tokens to prefill.
        depth: Number of tokens to draft; 0 unless all are prefilled then.
    """

    tokens: int
    depth: int


class DraftingPlan(NamedTuple):
    """Work of a draft model before the next pass.

    Attributes:
        draftings: Work for candidates, by index; the others are left out.
        seconds: Predicted duration.
    """

    draftings: dict[int, Drafting]
    seconds: float


class DraftingPolicy:
    """Drafts as many tokens as generate the most tokens per second, with the time of drafting.

    Args:
        checking: Policy of the passes that check drafts.
        costs: Durations of the draft model's passes.
    """

    def __init__(self, checking: SpeculationPolicy, costs: PassCosts) -> None:
        self._checking, self._costs = checking, costs
        self._pace = Pace()
        self._probe_at = 0

    def plan(
        self, candidates: Sequence[Candidate], others: Sequence[Draft], running: int, tokens: int, number: int
    ) -> DraftingPlan:
        """Decide what the model does before a pass.

        Args:
            candidates: Generations that can be drafted for.
            others: Drafts by prompt lookup of the others.
            running: Number of sequences that run.
            tokens: Mean number of tokens that they hold.
            number: Number of the pass.
        """
        budget = self._prefill_budget(running, tokens)
        paying = [index for index, each in enumerate(candidates) if self._pays(each, running, tokens)]
        depth = self._depth(candidates, paying, others, running, tokens)
        found: dict[int, Drafting] = {}
        if depth:
            found = self._draftings(candidates, paying, depth, budget)
            ready = [index for index, each in found.items() if each.depth]
            if len(ready) < len(paying) and (shared := self._depth(candidates, ready, others, running, tokens)) < depth:
                for index in ready:
                    planned = found.pop(index)
                    if shared:
                        found[index] = planned._replace(depth=min(shared, planned.depth))
        if number >= self._probe_at:
            self._probe(candidates, others, found, budget, running, tokens, number)
        return DraftingPlan(found, self._seconds(found.values(), tokens))

    def measured(self, plan: DraftingPlan, seconds: float) -> None:
        """Record the duration of what was planned."""
        self._pace.observe(seconds, plan.seconds)

    def rested(self) -> None:
        """Record a pass before which the model did nothing."""
        self._pace.relax()

    def _draftings(
        self, candidates: Sequence[Candidate], paying: Sequence[int], depth: int, budget: int
    ) -> dict[int, Drafting]:
        """Work for those whose drafts pay, those with the fewest uncached tokens first."""
        found, rows = dict[int, Drafting](), _MOST_PREFILLED
        for index in sorted(paying, key=lambda each: candidates[each].uncached):
            each = candidates[index]
            count = min(each.uncached, rows if each.uncached <= _NEAR else min(rows, budget))
            rows -= count
            budget -= count if each.uncached > _NEAR else 0
            if count:
                found[index] = Drafting(count, min(depth, each.draft.length) if count == each.uncached else 0)
        return found

    def _pays(self, each: Candidate, running: int, tokens: int) -> bool:
        """Whether a generation's drafts can pay, with seeing its tokens before."""
        if each.draft.acceptance < self._checking.least_acceptance(running, tokens):
            return False
        if each.uncached <= _NEAR:
            return True
        gained = sum(each.draft.acceptance**position for position in range(1, each.draft.length + 1))
        saved = each.remaining * gained / (1 + gained) * self._checking.step(running, tokens) / running
        return self._costs.prefill_seconds(0, each.uncached) * self._pace.ratio <= saved * _LEAST_RETURN

    def _depth(
        self, candidates: Sequence[Candidate], chosen: Sequence[int], others: Sequence[Draft], running: int,
        tokens: int,
    ) -> int:  # fmt: skip
        """Number of tokens to draft for chosen candidates; 0 if that does not pay."""
        step = self._checking.step(running, tokens)
        lookups = {index: each.lookup for index, each in enumerate(candidates) if each.lookup is not None}
        without = self._checking.best([*others, *lookups.values()], running, tokens, 0.0, step)[1]
        found, best_rate = 0, without * _LEAST_GAIN
        beside = [lookup for index, lookup in lookups.items() if index not in chosen]
        drafts = [candidates[index].draft for index in chosen]
        # Those that are far behind are prefilled once: `_pays` has weighed that.
        uncached = [candidates[index].uncached if candidates[index].uncached <= _NEAR else 1 for index in chosen]
        for depth in range(1, max((draft.length for draft in drafts), default=0) + 1):
            seconds = self._seconds([Drafting(count, depth) for count in uncached], tokens)
            made = [Draft(min(depth, draft.length), draft.acceptance) for draft in drafts]
            rate = self._checking.best([*others, *beside, *made], running, tokens, seconds, step)[1]
            if rate > best_rate:
                found, best_rate = depth, rate
        return found

    def _probe(
        self, candidates: Sequence[Candidate], others: Sequence[Draft], found: dict[int, Drafting], budget: int,
        running: int, tokens: int, number: int,
    ) -> None:  # fmt: skip
        """Draft one token for one of the others, with the fewest uncached tokens, if accepted drafts would pay."""
        left = [index for index in range(len(candidates)) if index not in found]
        sure = [each._replace(draft=Draft(each.draft.length, 1.0)) for each in candidates]
        if not left:
            return
        if not self._depth(sure, range(len(sure)), others, running, tokens):
            self._probe_at = number + _UNPAID_PASSES
            return
        index = min(left, key=lambda each: candidates[each].uncached)
        count = min(candidates[index].uncached, budget)
        found[index] = Drafting(count, int(count == candidates[index].uncached))
        if found[index].depth:  # until then more of its tokens are prefilled before each pass
            self._probe_at = number + _PROBE_PASSES

    def _prefill_budget(self, running: int, tokens: int) -> int:
        """Number of tokens to prefill before a pass of generations that are far behind."""
        seconds = self._checking.seconds_beside(running, tokens) * _PREFILL_SHARE
        counts = range(_LEAST_PREFILLED + 1, _MOST_PREFILLED + 1)
        return _LEAST_PREFILLED + bisect_right(counts, seconds, key=lambda count: self._added_seconds(count, tokens))

    def _seconds(self, draftings: Iterable[Drafting], tokens: int) -> float:
        """Duration of a pass for each token of the longest draft, the first one with the uncached tokens."""
        every = list(draftings)
        if not every:
            return 0.0
        depths = [each.depth for each in every]
        rows = [len(every), *(sum(depth > passed for depth in depths) for passed in range(1, max(depths)))]
        passes = sum(self._costs.decode_seconds(count, tokens) for count in rows) * self._pace.ratio
        return passes + self._added_seconds(sum(each.tokens - 1 for each in every), tokens)

    def _added_seconds(self, count: int, tokens: int) -> float:
        """Time that other tokens than the latest ones add to a pass."""
        return self._costs.chunk_seconds(tokens, tokens + count) * self._pace.ratio if count > 0 else 0.0
