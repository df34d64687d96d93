"""Tokenisation, shared by the systems that read text."""

from tidal.text.tokenizer import Encoded, TextTokenizer

__all__ = ["Encoded", "TextTokenizer"]
