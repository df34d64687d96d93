"""Windows compared with those that transformers' tokenizers cut, and merging with brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.encoder_tasks.support import FAMILIES, align, texts, tokenizer
from tidal.encoder_tasks.windows import Windows, cut_windows, merge_tokens, merge_vectors, window_ranges


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(text=texts, question=st.none() | texts, room=st.integers(1, 12), overlap=st.integers(0, 11))
def test_windows_equal_those_of_transformers(
    folder: Path, family: str, text: str, question: str | None, room: int, overlap: int
) -> None:
    assume(overlap < room)
    fast = tokenizer(family, folder)
    ids, source = align(fast, text) if question is None else align(fast, question, text)
    content = source.parts == (0 if question is None else 1)
    max_length = len(ids) - int(content.sum()) + room
    cut = {"max_length": max_length, "stride": overlap, "return_overflowing_tokens": True}
    if question is None:
        expected = fast(text, truncation=True, **cut)["input_ids"]
    else:
        expected = fast(question, text, truncation="only_second", **cut)["input_ids"]
    windows = cut_windows(content, max_length, overlap)
    assert [ids[tokens].tolist() for tokens in windows.tokens] == expected


counts = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 3), st.integers(1, 12), st.integers(0, 11))


def cut(before: int, inside: int, after: int, room: int, overlap: int) -> Windows:
    content = np.array([False] * before + [True] * inside + [False] * after)
    return cut_windows(content, before + room + after, overlap)


@given(counts)
def test_a_token_is_owned_by_the_window_that_shows_most_around_it(sizes: tuple[int, int, int, int, int]) -> None:
    before, inside, after, room, overlap = sizes
    assume(overlap < room and before + inside + after)
    windows = cut(*sizes)
    for token in range(before + inside + after):
        owners = [
            number for number in range(len(windows.tokens)) if token in windows.tokens[number][windows.owned[number]]
        ]
        if not before <= token < before + inside:
            assert owners == [0]
            continue
        # Distance to the nearest cut of each window that has the token; the begin and the end of the text are no cuts.
        distances = {}
        for number, tokens in enumerate(windows.tokens):
            places = [place for place in tokens.tolist() if before <= place < before + inside]
            if token in places:
                left = token - places[0] if places[0] > before else 10**6
                right = places[-1] - token if places[-1] < before + inside - 1 else 10**6
                distances[number] = min(left, right)
        best = max(distances.values())
        assert owners == [min(number for number, distance in distances.items() if distance == best)]


@given(counts)
def test_every_token_is_merged_once_from_its_owner(sizes: tuple[int, int, int, int, int]) -> None:
    before, inside, after, room, overlap = sizes
    assume(overlap < room and before + inside + after)
    windows = cut(*sizes)
    values = [np.stack([tokens, np.full(len(tokens), number)], 1) for number, tokens in enumerate(windows.tokens)]
    merged = merge_tokens(windows, values)
    assert merged[:, 0].tolist() == list(range(before + inside + after))
    assert (np.diff(merged[before : before + inside, 1]) >= 0).all()


@given(counts)
def test_vectors_are_weighted_by_the_tokens_that_their_windows_own(sizes: tuple[int, int, int, int, int]) -> None:
    assume(sizes[4] < sizes[3] and sum(sizes[:3]))
    windows = cut(*sizes)
    vectors = np.random.default_rng(0).standard_normal((len(windows.tokens), 5)).astype(np.float32)
    # The mean over tokens of the vector of each token's owner.
    tokens = [np.tile(vector, (len(own), 1)) for vector, own in zip(vectors, windows.tokens, strict=True)]
    np.testing.assert_allclose(merge_vectors(windows, vectors), merge_tokens(windows, tokens).mean(0), atol=1e-5)


def test_an_overlap_that_leaves_no_room_is_refused() -> None:
    assert window_ranges(0, 4, 3) == [(0, 4 * 0)]
    for size, overlap in ((4, 4), (0, 0), (4, -1)):
        with pytest.raises(ValueError, match=f"windows of {size} tokens is {overlap}; expected 0 to {size - 1}"):
            window_ranges(10, size, overlap)
