"""Tokenisation for systems that read text; imports no system."""

from tidal.text.source import SourceText
from tidal.text.tokenizer import Encoded, Texts, TextTokenizer

__all__ = ["Encoded", "SourceText", "TextTokenizer", "Texts"]
