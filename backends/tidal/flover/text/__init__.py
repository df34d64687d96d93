"""Incremental text of a generation: detokenizing and stop strings; imports `tokenizers` only."""

from tidal.flover.text.detokenizer import Detokenizer
from tidal.flover.text.stop_strings import StopMatcher

__all__ = ["Detokenizer", "StopMatcher"]
