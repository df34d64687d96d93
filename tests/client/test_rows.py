"""How lists become requests, against the definition: every row once, limits kept, similar sizes together."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidal_client.bulk.run import parts
from tidal_client.rows import MAX_BYTES, split_rows


@given(st.lists(st.integers(0, MAX_BYTES * 2) | st.integers(0, 200), max_size=300), st.integers(1, 70))
def test_rows_are_split_once_within_the_limits(sizes: list[int], max_rows: int) -> None:
    found = split_rows(sizes, max_rows)
    rows = np.concatenate([*found, np.array([], np.intp)]).tolist()
    assert sorted(rows) == list(range(len(sizes)))
    for part in found:
        assert 1 <= len(part) <= max_rows
        assert len(part) == 1 or sum(sizes[row] for row in part) <= MAX_BYTES
    if len(found) > 1:
        assert [sizes[row] for row in rows] == sorted(sizes, reverse=True)
    # A request that could take the next row would be wasted.
    for part, following in itertools.pairwise(found):
        held = sum(sizes[row] for row in part)
        assert len(part) == max_rows or held + sizes[following[0]] > MAX_BYTES


@given(st.lists(st.text(max_size=20), min_size=1, max_size=60), st.integers(1, 9))
def test_requests_of_a_file_have_every_text_with_its_index(texts: list[str], max_rows: int) -> None:
    found = list(parts(iter(texts), max_rows))
    assert [part.number for part in found] == list(range(len(found)))
    pairs = [(row, text) for part in found for row, text in zip(part.rows.tolist(), part.texts, strict=True)]
    assert sorted(pairs) == list(enumerate(texts))


def test_texts_of_a_later_window_have_their_index_in_the_file() -> None:
    texts = [f"{number:07}" for number in range(10_000)]
    found = list(parts(iter(texts), 64))
    assert all(texts[row] == text for part in found for row, text in zip(part.rows.tolist(), part.texts, strict=True))
    assert sum(len(part.texts) for part in found) == 10_000
    # A window is bounded in bytes too: texts of 5 MB are not all held to sort them.
    large = parts((str(number) * 5_000_000 for number in range(1_000_000)), 64)
    assert next(large).rows.tolist() == [0]
