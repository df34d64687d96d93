"""Sampling: from logits to tokens, by the settings and the random numbers of each generation; imports numpy only."""

from tidal.flover.sampling.draw import UNDEFINED
from tidal.flover.sampling.history import FloatArray, IntArray
from tidal.flover.sampling.logprobs import TokenLogprobs, token_logprobs
from tidal.flover.sampling.sample import sample_tokens
from tidal.flover.sampling.sampler import BoolArray, Constraint, Sampler, SamplingParams

__all__ = [
    "UNDEFINED", "BoolArray", "Constraint", "FloatArray", "IntArray", "Sampler", "SamplingParams", "TokenLogprobs",
    "sample_tokens", "token_logprobs",
]  # fmt: skip
