"""From tokens to the text that a client sees, piece by piece."""

from tidal.flover.text.detokenizer import Detokenizer
from tidal.flover.text.stops import StopWatch

__all__ = ["Detokenizer", "StopWatch"]
