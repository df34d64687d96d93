"""Text of tokens: incremental, up to stop strings, and of each token; imports no other part of the system."""

from tidal.flover.text.detokenizer import Detokenizer
from tidal.flover.text.stop_strings import StopMatcher
from tidal.flover.text.token_texts import TokenTexts

__all__ = ["Detokenizer", "StopMatcher", "TokenTexts"]
