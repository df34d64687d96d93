"""Tokenised queries for verification and calibration, and the padded batches in which they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal_builders.texts import make_texts

VERIFICATION = 64
CALIBRATION = 48

# One query: int64 arrays of shape [length] by input name.
Row = Mapping[str, npt.NDArray[np.int64]]
Batch = dict[str, npt.NDArray[np.int64]]


def draw_samples(
    tokenizer: Any,
    texts: Sequence[str],
    max_length: int,
    count: int,
    names: Sequence[str],
    seed: int,
    *,
    pairs: bool = False,
) -> list[Row]:
    """Draw queries of many lengths, from the shortest text to `max_length` tokens.

    Every second query is one text, truncated if it is too long. The others are concatenated texts, with lengths that
    are spread evenly up to `max_length`.

    Args:
        tokenizer: Fast tokenizer of `transformers`.
        texts: Texts to draw from.
        max_length: Maximum number of tokens, special tokens included.
        count: Number of queries.
        names: Names of the inputs, such as `input_ids`.
        seed: Seed of the random numbers.
        pairs: Whether queries are pairs, of a text and one as above.

    Raises:
        InvalidArgument: The texts contain only white space.
    """
    lines = [text.strip() for text in texts if text.strip()]
    if not lines:
        raise InvalidArgument("field 'samples': the file contains no text")
    draw = np.random.default_rng(seed)
    shortest = len(tokenizer(*["a"] * (1 + pairs))["input_ids"])
    targets = np.linspace(max_length, shortest, -(-count // 2)).round().astype(int)
    rows: list[Row] = []
    for number in range(count):
        text = lines[int(draw.integers(len(lines)))]
        limit = max_length
        if number % 2 == 0:
            limit = max(int(targets[number // 2]), shortest)
            while len(tokenizer(text, verbose=False)["input_ids"]) < limit:
                text += " " + lines[int(draw.integers(len(lines)))]
        query = (lines[int(draw.integers(len(lines)))], text) if pairs else (text,)
        encoded = tokenizer(*query, truncation=True, max_length=limit)
        rows.append({name: np.asarray(encoded[name], np.int64) for name in names})
    return rows


def sample_texts(content: str | None) -> tuple[list[str], list[str]]:
    """Texts for verification and texts for calibration.

    Args:
        content: Content of the spec's samples file, whose odd and even lines are used; None: texts are generated.
    """
    if content is None:
        return make_texts(200, seed=1), make_texts(200, seed=2)
    lines = [line for line in content.splitlines() if line.strip()]
    return lines[::2], lines[1::2] or lines


def pad(rows: Sequence[Row], length: int, pad_id: int) -> Batch:
    """Pad queries to one batch.

    Args:
        rows: Queries.
        length: Length of the batch in tokens.
        pad_id: Token id of the padding.

    Returns:
        int64 arrays of shape [rows, length] by input name.
    """
    batch: Batch = {}
    for name in rows[0]:
        batch[name] = np.full((len(rows), length), pad_id if name == "input_ids" else 0, np.int64)
        for number, row in enumerate(rows):
            batch[name][number, : len(row[name])] = row[name]
    return batch


def synthetic(names: Sequence[str], batch: int, length: int, token: int) -> Batch:
    """A batch without padding, for timing: the latency of a dense encoder does not depend on the tokens.

    Args:
        names: Names of the inputs.
        batch: Number of rows.
        length: Length in tokens.
        token: Token id to fill `input_ids` with.
    """
    filled = {"input_ids": token, "attention_mask": 1, "token_type_ids": 0}
    return {name: np.full((batch, length), filled[name], np.int64) for name in names}


def batches(rows: Sequence[Row], largest: int, seed: int) -> list[list[int]]:
    """Split rows into batches of mixed lengths and of sizes from 1 to `largest`, so that padding occurs.

    Returns:
        Indices of the rows of each batch.
    """
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    sizes = sorted({1, 2, 3, min(8, largest), largest} & set(range(1, largest + 1)))
    groups: list[list[int]] = []
    while order:
        size = sizes[len(groups) % len(sizes)]
        groups.append(order[:size])
        order = order[size:]
    return groups


def longest(rows: Sequence[Row]) -> int:
    """Length of the longest row in tokens."""
    return max(len(row["input_ids"]) for row in rows)
