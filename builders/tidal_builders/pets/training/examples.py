"""Texts as token ids, and batches of texts of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

# Number of batches within which texts are sorted by length, so that every epoch has other batches.
_POOL = 40


class Examples:
    """Tokenised texts; a text is one string or two."""

    def __init__(self, tokenizer: Any, texts: Sequence[Sequence[str]], longest: int) -> None:
        columns = [list(column) for column in zip(*texts, strict=True)]
        self._tokenizer = tokenizer
        found = tokenizer(*columns, truncation=True, max_length=longest)
        names = [name for name in tokenizer.model_input_names if name in found]
        self._rows = [{name: found[name][row] for name in names} for row in range(len(texts))]

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> list[int]:
        """Tokens of each text, special tokens included."""
        return [len(row["input_ids"]) for row in self._rows]

    def padded(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """An encoder's inputs for some of the texts, [rows, tokens] each."""
        return dict(self._tokenizer.pad([self._rows[row] for row in rows], return_tensors="pt"))

    def shuffled(self, batch: int, draw: np.random.Generator) -> Iterator[list[int]]:
        """Iterate over all texts once, in batches of similar lengths and in random order."""
        lengths = self.lengths()
        order = draw.permutation(len(lengths)).tolist()
        batches = []
        for start in range(0, len(order), batch * _POOL):
            pool = sorted(order[start : start + batch * _POOL], key=lengths.__getitem__)
            batches += [pool[first : first + batch] for first in range(0, len(pool), batch)]
        for position in draw.permutation(len(batches)).tolist():
            yield batches[position]

    def sorted(self, batch: int) -> Iterator[list[int]]:
        """Iterate over all texts once, the shortest first."""
        lengths = self.lengths()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        yield from (order[start : start + batch] for start in range(0, len(order), batch))
