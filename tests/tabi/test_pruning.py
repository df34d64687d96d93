"""Equation 5 and the pruned texts, compared with a plain reference for two kinds of tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.text import corpora, reference
from tidal.tabi.pruning import kept_words, prune_ids, prune_text, significant
from tidal.text.words import BLANK, SPECIAL, EncodedWords, Word, Words, WordTokenizer

Train = Callable[[Path], Path]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpora.wordpiece(tmp_path_factory.mktemp("pieces") / "tokenizer.json")


@pytest.fixture(scope="module")
def bytes_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpora.byte_level(tmp_path_factory.mktemp("bytes") / "tokenizer.json")


def encode(tokenizer: WordTokenizer, *query: str) -> EncodedWords:
    texts = [text.encode() for text in query]
    (got,) = tokenizer.encode(texts[:1], texts[1:] or None)
    assert isinstance(got, EncodedWords), got
    return got


def words(*owners: int, parts: tuple[int, ...] = (), unseen: int = 0) -> EncodedWords:
    """A query whose tokens belong to the words `owners`.

    Args:
        owners: Index of each token's word, or SPECIAL or BLANK.
        parts: Index of each word's text.
        unseen: Number of further words that were truncated.
    """
    count = max(owners) + 1 + unseen
    parts = parts or (0,) * count
    spans = tuple(Word(part, 2 * number, 2 * number + 1) for number, part in enumerate(parts))
    texts = ("a " * count,) * (max(parts) + 1)
    zeros = np.zeros(len(owners), np.int64)
    found = Words(np.array(owners), spans, texts, separable=False)
    return EncodedWords(zeros, zeros, lambda: found)


def test_equation_by_hand() -> None:
    # The mean of 1, 2 and 6 is 3; the special tokens' 90 does not count. At 2/3 of it, 2 is not above 2.
    importance, content = [90, 1, 2, 6, 90], [False, True, True, True, False]
    assert significant(importance, content, 0.5).tolist() == [True, False, True, True, True]
    assert significant(importance, content, 2 / 3).tolist() == [True, False, False, True, True]
    assert significant(importance, content, 2).tolist() == [True, False, False, False, True]
    assert significant(importance, content, 0.1).tolist() == [True] * 5


def test_special_tokens_are_never_pruned() -> None:
    assert significant([0, 5, 5, 0], [False, True, True, False], 0.5).all()
    assert significant([0, 0], [False, False], 0.5).all()


# Whole numbers, so that sums do not depend on their order.
@given(
    arrays(np.float64, st.shared(st.integers(1, 30), key="length"), elements=st.integers(0, 1000).map(float)),
    arrays(np.bool_, st.shared(st.integers(1, 30), key="length")),
    st.floats(0.01, 2),
    st.floats(0.01, 2),
)
def test_the_mask_shrinks_with_the_scale_and_follows_the_order_of_tokens(
    importance: np.ndarray, content: np.ndarray, one: float, other: float
) -> None:
    low, high = sorted([one, other])
    many, few = significant(importance, content, low), significant(importance, content, high)
    assert (many | ~few).all()
    assert few[~content].all()
    assert significant(importance[::-1], content[::-1], low)[::-1].tolist() == many.tolist()
    # Only the importance relative to the mean counts.
    assert significant(importance * 1024, content, low).tolist() == many.tolist()


def test_the_papers_figure_3(tmp_path: Path) -> None:
    text = "This paper is beautifully written and enjoyable to read"
    pieces = ["this", "paper", "is", "beautiful", "##ly", "written", "and", "enjoy", "##able", "to", "read"]
    tokenizer = WordTokenizer(corpora.wordpiece(tmp_path / "tokenizer.json", pieces), 32, truncate=True)
    got = encode(tokenizer, text)
    assert len(got.ids) == len(pieces) + 2
    # "##ly" and "enjoy" are below the mean of 1, but other tokens of their words, "beautiful" and "##able", are not.
    importance = [9, 1.2, 1.3, 0.5, 2.2, 0.8, 1.4, 0.4, 0.9, 1.5, 0.3, 0.5, 9]
    kept = kept_words(got, importance, 1.0)
    assert prune_text((text,), got.spans, kept) == ("This paper beautifully written enjoyable",)
    assert prune_ids(got, kept).ids.tolist() == [2, 4, 5, 7, 8, 9, 11, 12, 3]


def test_a_word_is_kept_if_any_of_its_tokens_is_significant() -> None:
    got = words(SPECIAL, 0, 0, 1, 1, 2, SPECIAL)
    assert kept_words(got, [0, 1, 9, 1, 1, 9, 0], 0.5).tolist() == [True, False, True]


def test_tokens_of_blanks_have_no_influence() -> None:
    # The mean of 1 and 3 is 2, whatever the importance of the blanks.
    got = words(0, BLANK, BLANK, 1)
    assert kept_words(got, [1, 99, 0, 3], 0.6).tolist() == [False, True]


def test_truncated_words_are_kept() -> None:
    assert kept_words(words(0, 1, unseen=3), [1, 9], 0.5).tolist() == [False, True, True, True, True]


def test_no_text_becomes_empty() -> None:
    pair = words(SPECIAL, 0, 1, SPECIAL, 2, 3, 3, SPECIAL, parts=(0, 0, 1, 1))
    # The mean is 18.8: nothing of the second text is above half of it, and its word 3 has the most important token.
    assert kept_words(pair, [0, 50, 40, 0, 1, 1, 2, 0], 0.5).tolist() == [True, True, False, True]
    assert kept_words(pair, [0, 1, 2, 0, 40, 40, 40, 0], 0.5).tolist() == [False, True, True, True]
    assert kept_words(words(0, 1), [3, 3], 5.0).tolist() == [True, False]
    assert kept_words(words(0, 1), [0, 0], 0.5).sum() == 1
    # A truncated word does not replace one of those that the level received.
    assert kept_words(words(0, 1, unseen=1), [3, 4], 5.0).tolist() == [False, True, True]


def test_text_by_hand() -> None:
    texts = (" one  two\nthree ", "日本語 end")
    spans = (Word(0, 1, 4), Word(0, 6, 9), Word(0, 10, 15), *(Word(1, at, at + 1) for at in range(3)), Word(1, 4, 7))
    for kept, expected in [
        ("1111111", ("one two three", "日本語 end")),
        ("1010111", ("one three", "本語 end")),
        ("0101010", ("two", "日 語")),
        ("0010001", ("three", "end")),
    ]:
        assert prune_text(texts, spans, [digit == "1" for digit in kept]) == expected


@pytest.mark.parametrize("max_length", [24, 512])
@pytest.mark.parametrize("kind", ["pieces", "bytes_"])
def test_random_texts_against_the_reference(kind: str, max_length: int, request: pytest.FixtureRequest) -> None:
    file: Path = request.getfixturevalue(kind)
    texts = corpora.texts(400, seed=5)
    tokenizer = WordTokenizer(file, max_length, truncate=True)
    random = np.random.default_rng(6)
    for number, text in enumerate(texts):
        query = (text,) if number % 3 else (text, texts[-1 - number])
        got, plain = encode(tokenizer, *query), reference.read(file, query, max_length)
        # Whole numbers, so that sums do not depend on their order.
        importance = random.geometric(0.15, len(got.ids)).astype(float)
        scale = float(random.choice([0.25, 0.5, 0.75, 1.0, 4.0]))
        kept = kept_words(got, importance, scale)
        expected = reference.kept(plain, importance.tolist(), scale)
        assert kept.tolist() == expected
        pruned = prune_text(query, got.spans, kept)
        assert pruned == reference.pruned(query, plain.spans, expected)
        assert len(pruned) == len(query)
        assert all(text.strip() for text in pruned)


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
def test_pruned_ids_are_the_pruned_texts_where_words_are_separable(pieces: Path, share: float) -> None:
    tokenizer = WordTokenizer(pieces, 512, truncate=True)
    texts = corpora.texts(400, seed=7)
    random = np.random.default_rng(8)
    separable = 0
    for number, text in enumerate(texts):
        query = (text,) if number % 3 else (text, texts[-1 - number])
        got = encode(tokenizer, *query)
        separable += got.separable
        # A second time, as in a cascade of three levels.
        for _ in range(2 if got.separable else 0):
            kept = random.random(len(got.spans)) < share
            for part in range(len(query)):
                mine = [index for index, word in enumerate(got.spans) if word.part == part]
                kept[random.choice(mine)] = True
            got, before = prune_ids(got, kept), got
            assert got.texts == prune_text(before.texts, before.spans, kept)
            again = encode(tokenizer, *got.texts)
            assert again.ids.tolist() == got.ids.tolist()
            assert again.type_ids.tolist() == got.type_ids.tolist()
            assert again.words.tolist() == got.words.tolist()
            assert again.spans == got.spans
            assert again.separable == got.separable
    assert separable > 360


def test_pruning_keeps_the_boundary_and_type_ids_of_a_pair(pieces: Path) -> None:
    got = encode(WordTokenizer(pieces, 64, truncate=True), "this paper is", "written and read")
    pruned = prune_ids(got, [False, True, False, True, False, True])
    assert pruned.texts == ("paper", "written read")
    assert (pruned.words == SPECIAL).sum() == 3
    boundary = np.flatnonzero(pruned.words == SPECIAL)[1]
    assert (pruned.type_ids == (np.arange(len(pruned.ids)) > boundary)).all()
    assert pruned.spans == (Word(0, 0, 5), Word(1, 0, 7), Word(1, 8, 12))


def test_byte_level_ids_depend_on_the_preceding_words_and_are_not_separable(bytes_: Path) -> None:
    tokenizer = WordTokenizer(bytes_, 64, truncate=True)
    got = encode(tokenizer, "this paper")
    pruned = prune_ids(got, [False, True])
    assert pruned.texts == ("paper",)
    assert pruned.ids.tolist() != encode(tokenizer, "paper").ids.tolist()
    assert not got.separable


def test_without_pruning_only_blanks_change(bytes_: Path, pieces: Path) -> None:
    for file in (bytes_, pieces):
        tokenizer = WordTokenizer(file, 512, truncate=True)
        for text in corpora.texts(100, seed=9):
            got = encode(tokenizer, text)
            (pruned,) = prune_text(got.texts, got.spans, np.ones(len(got.spans), np.bool_))
            assert "".join(pruned.split()) == "".join(text.split())
            assert "  " not in pruned
