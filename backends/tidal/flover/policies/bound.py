"""The bound on prefill beside decode steps, by measured costs that are corrected while a model serves."""

from __future__ import annotations

from collections import deque

from tidal.flover.policies.costs import PassCosts

# Iterations with prompts whose durations are compared, and the number of them that may exceed the bound: they vary, and
# a single one that other work delayed changes little.
_RECENT, _LATE = 128, 2
# Least weights of the newest measurement; a step is measured alone now and then only.
_STEP_WEIGHT, _MIXED_WEIGHT = 1 / 8, 1 / 16
# Factor of the ratio so far within which a measurement counts: an iteration that other work delayed shows nothing.
_MOST_CHANGE = 2.0
#: Duration in seconds that a step counts as at least: nobody notices a token that is so much later, and with less the
#: prompts of small models would be computed a few tokens at a time.
LEAST_STEP_S = 0.005
#: Iterations with prompts after which a step runs alone, so that its duration is known while prompts always wait. The
#: first ones follow after fewer iterations.
ALONE_EVERY = 32


class PrefillBound:
    """Time that prompts may take beside a decode step, so that they add at most `share` times its duration to it.

    Costs were measured pass by pass when the model was built. What is between two passes, and other work on the
    machine, come on top, so steps are compared with what was expected of them, and iterations with prompts with what
    such a step and the prompts should take together. Iterations vary; the bound is for nearly all, not for their mean.

    Args:
        costs: Durations of passes.
        share: Bound as a multiple of the duration of a step, or of `LEAST_STEP_S` where that is longer; above 0.
    """

    def __init__(self, costs: PassCosts, share: float) -> None:
        self._costs, self._share = costs, share
        self._step, self._mixed = _Ratio(), _Ratio()
        self._mixed_since_step = 0
        self._expected: tuple[float, float] | None = None

    @property
    def needs_step(self) -> bool:
        """Whether the next step has to run without prompts, to be measured."""
        return self._mixed_since_step >= min(ALONE_EVERY, 2 << self._step.measured)

    def seconds(self, running: int, tokens: int) -> float:
        """Time that prompts may add to a decode step, by the costs.

        Args:
            running: Number of sequences of the step.
            tokens: Mean number of tokens that they hold.
        """
        step = self._costs.decode_seconds(running, tokens) * self._step.mean
        most = step + self._share * max(step, LEAST_STEP_S)
        return max(0.0, most / (self._mixed.mean * self._mixed.high) - step)

    def expect(self, running: int, tokens: int, added: float) -> None:
        """Record what the next iteration runs.

        Args:
            running: Number of sequences of the step.
            tokens: Mean number of tokens that they hold.
            added: Time that its prompts add, by the costs; 0 without prompts.
        """
        self._expected = self._costs.decode_seconds(running, tokens), added

    def expect_nothing(self) -> None:
        """Record that the bound is not for the next iteration."""
        self._expected = None

    def measured(self, seconds: float) -> None:
        """Record the time from the last decode step to the end of the iteration's."""
        if self._expected is None:
            return
        step, added = self._expected
        self._expected = None
        if added:
            self._mixed.observe(seconds / (step * self._step.mean + added), _MIXED_WEIGHT)
            self._mixed_since_step += 1
        else:
            self._step.observe(seconds / step, max(_STEP_WEIGHT, 1 / (2 + self._step.measured)))
            self._mixed_since_step = 0


class _Ratio:
    """Recent ratio of measured to expected durations.

    Attributes:
        mean: The ratio.
        high: Factor of it that all but `_LATE` of the recent ratios did not exceed.
        measured: Number of measurements.
    """

    def __init__(self) -> None:
        self.mean, self.high, self.measured = 1.0, 1.0, 0
        self._recent = deque([1.0] * _LATE, _RECENT)

    def observe(self, ratio: float, weight: float) -> None:
        """Record a ratio with a weight."""
        change = min(max(ratio / self.mean, 1 / _MOST_CHANGE), _MOST_CHANGE)
        self._recent.append(change)
        self.high = max(1.0, sorted(self._recent)[-1 - _LATE])
        self.mean *= 1 + (change - 1) * weight
        self.measured += 1
