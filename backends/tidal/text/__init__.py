"""Tokenisation for systems that read text; imports no system."""

from tidal.text.tokenizer import Encoded, TextTokenizer

__all__ = ["Encoded", "TextTokenizer"]
