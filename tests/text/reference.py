"""Words and pruning, character by character and token by token: a simple reference for the fast code."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Encoding, Tokenizer

_BLANKS = set("\t\n\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(code) for code in range(0x2000, 0x200B)}


def _unspaced(character: str) -> bool:
    name = unicodedata.name(character, "")
    scripts = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO", "KHMER")
    return name.startswith(scripts)


@dataclass
class Read:
    """A tokenised query: spans (text, start, end) of its words, and for each token the number of its word or None."""

    ids: list[int]
    type_ids: list[int]
    spans: list[tuple[int, int, int]]
    owners: list[int | None]
    special: list[bool]


def read(file: Path, query: tuple[str, ...], max_length: int) -> Read:
    """Tokenise a query and determine its words; a query of `max_length` tokens counts as truncated."""
    encoding = _tokenizer(file, max_length).encode(*query)
    special = [mask == 1 for mask in encoding.special_tokens_mask]
    owners: list[int | None] = [None] * len(special)
    spans: list[tuple[int, int, int]] = []
    for part, text in enumerate(query):
        mine = [
            token
            for token in range(len(special))
            if not special[token] and (len(query) == 1 or encoding.sequence_ids[token] == part)
        ]
        seen = max((encoding.offsets[token][1] for token in mine), default=0)
        numbers = _number(text, encoding, part, seen if len(special) == max_length else None)
        first = len(spans)
        for place, number in enumerate(numbers):
            if number is not None and number == len(spans) - first:
                spans.append((part, place, place))
            if number is not None:
                spans[-1] = (part, spans[-1][1], place + 1)
        for token in mine:
            start, end = encoding.offsets[token]
            covered = {number for number in numbers[start : max(end, start + 1)] if number is not None}
            assert len(covered) <= 1
            owners[token] = first + covered.pop() if covered else None
    return Read(encoding.ids, encoding.type_ids, spans, owners, special)


@lru_cache(maxsize=8)
def _tokenizer(file: Path, max_length: int) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(max_length)
    return tokenizer


def _number(text: str, encoding: Encoding, part: int, cut: int | None) -> list[int | None]:
    """For each character the number of its word in the text; None for blanks."""
    numbers: list[int | None] = []
    word, group = -1, None
    for place, character in enumerate(text):
        if character in _BLANKS:
            numbers.append(None)
            continue
        here = encoding.char_to_word(place, part)
        if not numbers or numbers[-1] is None:
            word, group = word + 1, here
        else:
            beside = _unspaced(character) or _unspaced(text[place - 1])
            begins = (here is not None and group is not None and here != group) or place == cut
            if begins and beside and unicodedata.category(character)[0] != "M":
                word += 1
            group = group if here is None else here
        numbers.append(word)
    return numbers


def kept(query: Read, importance: Sequence[float], scale: float) -> list[bool]:
    """Which words are kept (Tabi, Equation 5)."""
    counted = [value for value, owner in zip(importance, query.owners, strict=True) if owner is not None]
    mean = sum(counted) / len(counted) if counted else 0.0
    stay = []
    for number in range(len(query.spans)):
        own = [value for value, owner in zip(importance, query.owners, strict=True) if owner == number]
        stay.append(not own or any(value > scale * mean for value in own))
    for part in {part for part, _, _ in query.spans}:
        seen = [number for number, span in enumerate(query.spans) if span[0] == part and number in query.owners]
        if seen and not any(stay[number] for number in seen):
            values = [(value, owner) for value, owner in zip(importance, query.owners, strict=True) if owner in seen]
            owner = max(values, key=lambda each: each[0])[1]  # the first of equals
            assert owner is not None
            stay[owner] = True
    return stay


def pruned(query: tuple[str, ...], spans: Sequence[tuple[int, int, int]], stay: Sequence[bool]) -> tuple[str, ...]:
    """Texts of the words that are kept."""
    results = []
    for part, text in enumerate(query):
        result, end = "", None
        for (where, start, behind), stays in zip(spans, stay, strict=True):
            if where == part and stays:
                result += ("" if end in (None, start) else " ") + text[start:behind]
                end = behind
        results.append(result)
    return tuple(results)
