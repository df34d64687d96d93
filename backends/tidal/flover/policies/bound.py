"""The bound on prefill beside decode steps, by measured costs that are corrected while a model serves."""

from __future__ import annotations

from tidal.flover.policies.costs import Pace, PassCosts

# Mean deviations above the mean within which an iteration is expected: of normal ones all but about 1 in 100.
_DEVIATIONS = 3.0


class PrefillBound:
    """Time that prompts may take beside a decode step, so that it takes at most 1 + `share` times as long with them.

    Costs were measured pass by pass when the model was built. What is between two passes, and other work on the
    machine, come on top, so steps and iterations with prompts are compared with what was expected of them. Iterations
    vary; the bound is for nearly all, not for their mean.

    Args:
        costs: Durations of passes.
        share: Bound as a multiple of the duration of a step; above 0.
    """

    def __init__(self, costs: PassCosts, share: float) -> None:
        self._costs, self._share = costs, share
        self._step, self._mixed = Pace(), Pace()
        self._expected: tuple[Pace, float] | None = None

    def seconds(self, running: int, tokens: int) -> float:
        """Time that prompts may add to a decode step, by the costs.

        Args:
            running: Number of sequences of the step.
            tokens: Mean number of tokens that they hold.
        """
        step = self._costs.decode_seconds(running, tokens)
        mixed = self._mixed.ratio + _DEVIATIONS * self._mixed.deviation
        return max(0.0, (1 + self._share) * step * self._step.ratio / mixed - step)

    def expect(self, running: int, tokens: int, added: float) -> None:
        """Record what the next iteration runs.

        Args:
            running: Number of sequences of the step.
            tokens: Mean number of tokens that they hold.
            added: Time that its prompts add, by the costs; 0 without prompts.
        """
        pace = self._mixed if added else self._step
        self._expected = pace, (self._costs.decode_seconds(running, tokens) + added) * pace.ratio

    def expect_nothing(self) -> None:
        """Record that the bound is not for the next iteration."""
        self._expected = None

    def measured(self, seconds: float) -> None:
        """Record the time from the last decode step to the end of the iteration's."""
        if self._expected is not None:
            pace, expected = self._expected
            pace.observe(seconds, expected)
        self._expected = None
