"""Sampling settings of one generation, with its random numbers, the tokens it has seen and those it may generate."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidal.flover.sampling.history import IntArray, TokenHistory

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of a generation; the defaults change nothing.

    Attributes:
        temperature: Divisor of the logits; 0 selects the most likely token.
        top_k: Number of most likely tokens to sample from; 0: all.
        top_p: Total probability of the most likely tokens to sample from; above 0, at most 1.
        repetition_penalty: Divisor of positive logits, and factor of negative ones, of tokens that occur in the prompt
            or the text; above 0, 1 changes nothing.
        seed: Seed of the random numbers; None: a new one each time.
        min_p: Lowest probability of a token to sample, as a share of the most likely token's.
        presence_penalty: Subtracted from the logits of tokens that occur in the text.
        frequency_penalty: Subtracted from the logits of tokens, for each time that they occur in the text.
        logit_bias: Added to the logits of tokens: pairs of token id and bias.
        min_tokens: Number of tokens to generate before a token that ends the text can be.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is selected."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def penalises(self) -> bool:
        """Whether tokens that occurred before are treated differently."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class Constraint(Protocol):
    """Tokens that may come next, see `tidal.flover.guided`."""

    @property
    def problem(self) -> str | None:
        """Why no token is allowed; None while one is."""

    def allowed(self) -> BoolArray:
        """Whether each token may come next, [vocabulary]; may wait for the mask to be computed."""

    def advance(self, token: int) -> None:
        """Record the next token; the mask after it is computed by another thread."""


class Sampler:
    """Settings and random numbers of one generation, so that its tokens do not depend on others in the batch.

    Attributes:
        params: Sampling settings.
        greedy: Whether the most likely token is selected, see `SamplingParams.greedy`.
        history: Tokens of prompt and text; None if no setting penalises them.
        bias: Token ids and the biases of their logits, [biases] each; None without any.
        ending: Token ids that end the text, [tokens].
        constraint: Constraint on the tokens; None without one.

    Args:
        params: Sampling settings.
        prompt: Token ids of the prompt, [tokens] int64.
        ending: Token ids that end the text.
        constraint: Constraint on the tokens; None without one.
    """

    __slots__ = (
        "_adjusts", "_generated", "_no_end", "_random", "bias", "constraint", "ending", "greedy", "history", "params",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        prompt: IntArray,
        ending: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        # Read for every token: properties of the settings would be computed each time.
        self.params, self.greedy = params, params.greedy
        self.constraint = constraint
        self.ending: IntArray = np.array(sorted(ending), np.int64)
        self.history: TokenHistory | None = None
        if params.penalises:
            # Only the repetition penalty counts tokens of the prompt.
            self.history = TokenHistory(prompt if params.repetition_penalty != 1 else prompt[:0])
        self.bias: tuple[IntArray, npt.NDArray[np.float32]] | None = None
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            self.bias = np.array(ids, np.int64), np.array(values, np.float32)
        self._random = None if params.greedy else np.random.default_rng(params.seed)
        self._generated = 0
        self._no_end = params.min_tokens if len(self.ending) else 0  # number of tokens before which none may end it
        self._adjusts = self.bias is not None or self.history is not None or constraint is not None

    @property
    def bans_end(self) -> bool:
        """Whether the next token may not end the text, because it has fewer than `min_tokens`."""
        return self._generated < self._no_end

    @property
    def adjusts(self) -> bool:
        """Whether the next token is selected by other scores than the logits."""
        return self._adjusts or self._generated < self._no_end

    def for_drafts(self) -> Sampler:
        """Return a copy with the same random numbers to come, and without the constraint, which leaves this one alone.

        From another model's logits it selects the token that this sampler is the most likely to select.
        """
        other = copy.copy(self)
        other._random = copy.deepcopy(self._random)
        other.history = None if self.history is None else self.history.copy()
        other.constraint = None
        other._adjusts = self.bias is not None or self.history is not None
        return other

    def draw(self) -> float:
        """Return the next random number in [0, 1)."""
        assert self._random is not None, "a greedy generation has no random numbers"
        return float(self._random.random())

    def record(self, token: int) -> None:
        """Record a token of the text."""
        self._generated += 1
        if self.history is not None:
            self.history.add(token)
        if self.constraint is not None:
            self.constraint.advance(token)
