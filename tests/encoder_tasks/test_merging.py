"""Results of rows and windows, merged to those of rows, whatever else is in the request and in each batch."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidal.encoder_tasks.cutting import Cutter, merge_results, pieces
from tidal.encoder_tasks.embedding import EmbeddingHead, EmbeddingSettings
from tidal.encoder_tasks.head import RowResult
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.tokens import TokenHead, TokenSettings
from tidal.errors import InvalidArgument

MAX_LENGTH = 10
VECTORS = EmbeddingSettings(dimension=3, pooling=("mean",), normalized=False, similarity="cosine")
TOKENS = TokenHead(TokenSettings(word_pieces=True, unknown_id=1), ("O", "B-PER", "I-PER"))
#: Numbers of tokens of the rows of a request, [CLS] and [SEP] included.
requests = st.lists(st.integers(3, 60), min_size=1, max_size=5)


def rows_of(lengths: list[int]) -> list[TokenRow]:
    """Rows of distinct token ids; the first and the last token of each are of no text."""
    rows, numbers = [], count(1)
    for length in lengths:
        parts: Any = SimpleNamespace(parts=np.array([-1, *[0] * (length - 2), -1]))
        ids = np.fromiter(numbers, np.int64, length)
        rows.append(TokenRow(ids, np.ones_like(ids), np.zeros_like(ids), parts))
    return rows


def results(head: Any, queries: list[TokenRow], outputs: Any, seed: int) -> list[RowResult]:
    """Results of queries that ran in random batches; `outputs` gives those of one query by name, [length, ...]."""
    draw = np.random.default_rng(seed)
    found: list[Any] = [None] * len(queries)
    order = draw.permutation(len(queries)).tolist()
    while order:
        batch, order = order[: (size := int(draw.integers(1, 4)))], order[size:]
        longest = max(len(queries[index].ids) for index in batch)
        own = [outputs(queries[index], number) for number, index in enumerate(batch)]
        padded = {
            name: np.stack(
                [np.pad(each[name], [(0, longest - len(each[name])), (0, 0)], constant_values=99) for each in own]
            )
            if own[0][name].ndim == 2
            else np.stack([each[name] for each in own])
            for name in own[0]
        }
        answers = head.batch(padded)
        for place, index in enumerate(batch):
            found[index] = RowResult(answers, place, padded, len(queries[index].ids), longest)
    return found


def owners(length: int, overlap: int) -> list[int]:
    """Window of each token of a row: the one with most of the text around it, the earlier of two."""
    inside, room = length - 2, MAX_LENGTH - 2
    ranges = [(start, min(start + room, inside)) for start in range(0, max(inside - overlap, 1), room - overlap)]
    best = [0]
    for token in range(inside):
        around = {
            number: min(token - start if start else 999, end - 1 - token if end < inside else 999)
            for number, (start, end) in enumerate(ranges)
            if start <= token < end
        }
        best.append(min(number for number, distance in around.items() if distance == max(around.values())))
    return [*best, 0]


@given(lengths=requests, overlap=st.integers(0, 5), seed=st.integers(0, 99))
def test_values_of_tokens_are_those_of_their_windows(lengths: list[int], overlap: int, seed: int) -> None:
    rows = rows_of(lengths)
    windows = Cutter(0, MAX_LENGTH, overlap, False).cut(rows)
    queries = pieces(rows, windows)
    assert all(len(query.ids) <= MAX_LENGTH for query in queries)
    first = [0, *np.cumsum([1 if own is None else len(own.tokens) for own in windows])]
    numbers = {id(query): number for number, query in enumerate(queries)}

    def outputs(query: TokenRow, _: int) -> dict[str, Any]:
        """A token's id and the number of its query: what a window gave for it is recognised."""
        values = np.stack([query.ids, np.full(len(query.ids), numbers[id(query)])], 1).astype(np.float32)
        return {"logits": np.pad(values, [(0, 0), (0, 1)]), "attention_received": values[:, :2]}

    merged = merge_results(TOKENS, rows, windows, results(TOKENS, queries, outputs, seed), ["attention_received"])
    for number, (row, result) in enumerate(zip(rows, merged, strict=True)):
        assert result.length == len(row.ids)
        own = owners(len(row.ids), overlap) if windows[number] is not None else [0] * len(row.ids)
        logits = np.asarray(result.batch["logits"][result.row][: result.length])
        np.testing.assert_array_equal(logits[:, 0], row.ids)
        np.testing.assert_array_equal(logits[:, 1] - first[number], own)
        np.testing.assert_array_equal(result.values("attention_received", per_token=True), logits[:, :2])


@given(lengths=requests, overlap=st.integers(0, 5), seed=st.integers(0, 99))
def test_vectors_are_means_over_the_tokens_that_windows_own(lengths: list[int], overlap: int, seed: int) -> None:
    rows = rows_of(lengths)
    windows = Cutter(0, MAX_LENGTH, overlap, False).cut(rows)
    queries = pieces(rows, windows)

    def vector(query: TokenRow) -> Any:
        return np.array([query.ids[0], query.ids[1], len(query.ids)], np.float32)

    head = EmbeddingHead(VECTORS, ())
    done = results(head, queries, lambda query, _: {"embedding": vector(query)}, seed)
    merged, rest = merge_results(head, rows, windows, done), iter(queries)
    for number, (row, result) in enumerate(zip(rows, merged, strict=True)):
        own = windows[number]
        vectors = [vector(next(rest)) for _ in range(1 if own is None else len(own.tokens))]
        of = owners(len(row.ids), overlap) if own is not None else [0] * len(row.ids)
        wanted = np.mean([vectors[window] for window in of], axis=0)
        np.testing.assert_allclose(result.batch["embedding"][result.row], wanted, rtol=1e-5)


def test_a_row_of_too_many_windows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="row 1 needs 66 windows of 10 tokens; accepted are up to 64"):
        Cutter(0, MAX_LENGTH, 0, False).cut(rows_of([5, 66 * 8 + 2]))
