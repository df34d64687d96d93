"""How one generation takes its tokens, and the random numbers and history that this needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of a generation; those that are not given change nothing.

    Attributes:
        temperature: what logits are divided by; 0 takes the likeliest token.
        top_k: tokens that may be taken, the likeliest; 0: all.
        top_p: probability that the likeliest tokens have to have together to be all that may be taken; above 0 to 1.
        repetition_penalty: what positive logits of tokens that stand in prompt or answer are divided by, and negative
            ones multiplied; above 0, 1 changes nothing.
        seed: of the random numbers; None takes a new one each time.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0 or self.top_k == 1


class Sampler:
    """One generation's settings with its own random numbers, so that its tokens do not depend on its neighbours.

    Args:
        sampling: the settings.
        prompt: token ids, [tokens] int64.
        vocabulary: tokens of the model.
    """

    __slots__ = ("_random", "sampling", "seen")

    def __init__(self, sampling: Sampling, prompt: IntArray, vocabulary: int) -> None:
        self.sampling = sampling
        self._random = None if sampling.greedy else np.random.default_rng(sampling.seed)
        #: Whether a token stands in prompt or answer, [vocabulary]; None where that does not matter.
        self.seen: npt.NDArray[np.bool_] | None = None
        if sampling.repetition_penalty != 1:
            self.seen = np.zeros(vocabulary, np.bool_)
            self.seen[prompt] = True

    def draw(self) -> float:
        """The next random number, 0 to below 1; one a token."""
        assert self._random is not None, "a greedy generation draws nothing"
        return float(self._random.random())

    def took(self, token: int) -> None:
        """Note a token of the answer."""
        if self.seen is not None:
            self.seen[token] = True
