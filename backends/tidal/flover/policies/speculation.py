"""Speculation: how many drafted tokens a pass checks beside the next token of every running generation.

A draft costs rows of a pass, and saves passes if the model would have generated it (Leviathan et al., "Fast Inference
from Transformers via Speculative Decoding", ICML 2023, §3). Rows are cheap while a pass waits for weights from memory,
and do not pay once many generations share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tidal.flover.policies.costs import Pace, PassCosts

#: Most tokens of a draft: with the last token they are the rows of one matrix tile.
MOST_DRAFTED = 15
#: Most drafted tokens of a pass, which bounds its activations.
MOST_DRAFT_ROWS = 256
# Least gain in tokens per second: a pass with drafts also samples in several rounds.
_LEAST_GAIN = 1.02
# Weight of the newest draft in the running mean of acceptance, of one generation and of all.
_ACCEPTANCE_WEIGHT = 1 / 8
_PRIOR_WEIGHT = 1 / 64
_FIRST_PRIOR = 0.25


#: Origin of drafted tokens: prompt lookup or a draft model.
DraftSource = Literal["lookup", "model"]


class CheckedDrafts(NamedTuple):
    """Outcome of a pass.

    Attributes:
        source: Prompt lookup or a draft model.
        checked: Number of drafted tokens that the pass checked.
        gained: Number of tokens gained by them.
    """

    source: DraftSource
    checked: int
    gained: int


class Draft(NamedTuple):
    """Tokens that a generation may continue with, as the policy sees them.

    Attributes:
        length: Number of tokens, at least 1.
        acceptance: Probability that a token is accepted if those before it are.
    """

    length: int
    acceptance: float


class DraftAcceptance:
    """Running estimate of the probability that a drafted token is accepted.

    Attributes:
        mean: The estimate.

    Args:
        mean: Estimate before the first observation.
        weight: Weight of the newest observation.
    """

    def __init__(self, mean: float, weight: float = _ACCEPTANCE_WEIGHT) -> None:
        self.mean = mean
        self._weight = weight

    def observe(self, accepted: int, rejected: bool) -> None:
        """Record the outcome of a draft.

        Args:
            accepted: Number of its tokens that were accepted.
            rejected: Whether the token after these was rejected.
        """
        for outcome in [1.0] * accepted + [0.0] * rejected:
            self.mean += (outcome - self.mean) * self._weight


class SpeculationPolicy:
    """Selects the drafted tokens of each pass: those with which it generates the most tokens per second.

    By the acceptance `a` of a generation, its draft of `k` tokens adds `a + a² + … + a^k` expected tokens. A pass with
    drafts takes the duration of the decode step and that of a chunk of as many tokens as are drafted, times the recent
    ratio of measured to predicted durations of such passes, and the time of drafting. So drafts end by themselves where
    they do not pay.

    Args:
        costs: Durations of passes.
        share: Bound on the time that drafts add to a step, as a multiple of its duration.
        most_rows: Most drafted tokens of a pass, whose logits the memory plan counts.

    Attributes:
        prior: DraftAcceptance of a generation whose drafts were not checked yet: the mean of all.
    """

    def __init__(self, costs: PassCosts, *, share: float, most_rows: int = MOST_DRAFT_ROWS) -> None:
        self.prior = DraftAcceptance(_FIRST_PRIOR, _PRIOR_WEIGHT)
        self._costs, self._share, self._most_rows = costs, share, most_rows
        self._step_pace, self._draft_pace = Pace(), Pace()

    def least_acceptance(self, running: int, tokens: int) -> float:
        """DraftAcceptance below which no draft pays; above 1 if none does.

        Args:
            running: Number of sequences that run.
            tokens: Mean number of tokens that they hold.
        """
        step = self.step(running, tokens)
        return min(
            running * (self._with_drafts(running, tokens, count) / step - 1) / count for count in (1, MOST_DRAFTED)
        )

    def select(self, drafts: Sequence[Draft], running: int, tokens: int, spent: float = 0.0) -> list[int]:
        """Return the number of tokens to check of each draft.

        Args:
            drafts: Drafts of generations that run.
            running: Number of sequences that run.
            tokens: Mean number of tokens that they hold.
            spent: Time that drafting has taken, in seconds.
        """
        counts = [0] * len(drafts)
        for number in self.best(drafts, running, tokens, spent, self.step(running, tokens) + spent)[0]:
            counts[number] += 1
        return counts

    def seconds_beside(self, running: int, tokens: int) -> float:
        """Bound on the time that drafts add to a step, in seconds."""
        return self._share * self.step(running, tokens)

    def step(self, running: int, tokens: int) -> float:
        """Duration of a step without drafts, in seconds."""
        return self._costs.decode_seconds(running, tokens) * self._step_pace.ratio

    def best(
        self, drafts: Sequence[Draft], running: int, tokens: int, spent: float, plain: float
    ) -> tuple[list[int], float]:
        """Return the number of the draft of each token to check, and the tokens per second with these.

        Args:
            drafts: Drafts of generations that run.
            running: Number of sequences that run.
            tokens: Mean number of tokens that they hold.
            spent: Time that drafting takes, in seconds, which counts for the bound, too.
            plain: Duration of the pass if it checks none, in seconds.
        """
        gains = [
            (draft.acceptance**position, number)
            for number, draft in enumerate(drafts)
            for position in range(1, min(draft.length, MOST_DRAFTED) + 1)
        ]
        gains.sort(key=lambda gain: -gain[0])
        bound = self.step(running, tokens) + self.seconds_beside(running, tokens) - spent
        best, best_rate, expected = 0, running / plain * _LEAST_GAIN, float(running)
        for rows, (gain, _) in enumerate(gains[: self._most_rows], 1):
            seconds = self._with_drafts(running, tokens, rows)
            if seconds > bound:
                break
            expected += gain
            if expected / (spent + seconds) > best_rate:
                best, best_rate = rows, expected / (spent + seconds)
        return [number for _, number in gains[:best]], best_rate

    def measured(self, running: int, tokens: int, drafted: int, seconds: float) -> None:
        """Record the duration of a pass with `drafted` tokens of drafts, in seconds."""
        if drafted:
            self._draft_pace.observe(seconds, self._with_drafts(running, tokens, drafted))
            return
        self._step_pace.observe(seconds, self.step(running, tokens))
        self._draft_pace.relax()

    def _with_drafts(self, running: int, tokens: int, rows: int) -> float:
        step, added = self.step(running, tokens), self._costs.chunk_seconds(tokens, tokens + rows)
        return max(step, (step + added) * self._draft_pace.ratio)
