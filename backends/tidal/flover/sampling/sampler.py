"""Sampling settings of one generation, with its random numbers and the tokens it has seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


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
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is selected."""
        return self.temperature == 0 or self.top_k == 1


class Sampler:
    """Settings and random numbers of one generation, so that its tokens do not depend on others in the batch.

    Args:
        params: Sampling settings.
        prompt: Token ids of the prompt, [tokens] int64.
        vocabulary: Size of the model's vocabulary.
    """

    __slots__ = ("_random", "params", "seen")

    def __init__(self, params: SamplingParams, prompt: IntArray, vocabulary: int) -> None:
        self.params = params
        self._random = None if params.greedy else np.random.default_rng(params.seed)
        #: Whether each token occurs in prompt or text, [vocabulary]; None without a repetition penalty.
        self.seen: npt.NDArray[np.bool_] | None = None
        if params.repetition_penalty != 1:
            self.seen = np.zeros(vocabulary, np.bool_)
            self.seen[prompt] = True

    def draw(self) -> float:
        """Return the next random number in [0, 1); one per token."""
        assert self._random is not None, "a greedy generation has no random numbers"
        return float(self._random.random())

    def record(self, token: int) -> None:
        """Record a token of the text."""
        if self.seen is not None:
            self.seen[token] = True
