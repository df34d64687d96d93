"""From logits to tokens, each generation by its own settings and its own random numbers."""

from tidal.flover.sampling.choose import UNDEFINED, choose
from tidal.flover.sampling.sampler import Sampler, Sampling

__all__ = ["UNDEFINED", "Sampler", "Sampling", "choose"]
