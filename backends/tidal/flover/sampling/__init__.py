"""Sampling: from logits to tokens, by the settings and the random numbers of each generation; imports numpy only."""

from tidal.flover.sampling.sample import UNDEFINED, FloatArray, sample_tokens
from tidal.flover.sampling.sampler import IntArray, Sampler, SamplingParams

__all__ = ["UNDEFINED", "FloatArray", "IntArray", "Sampler", "SamplingParams", "sample_tokens"]
