"""The assignment of tokens to words compared with a simple reference, for two kinds of tokenizers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.text import corpora, reference
from tidal.errors import InvalidArgument
from tidal.text import Encoded, TextTokenizer
from tidal.text.words import BLANK, SPECIAL, EncodedWords, Word, WordTokenizer


@pytest.fixture(scope="module", params=["wordpiece", "byte_level"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return getattr(corpora, request.param)(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def encode(tokenizer: WordTokenizer, *query: str) -> EncodedWords:
    texts = [text.encode() for text in query]
    (got,) = tokenizer.encode(texts[:1], texts[1:] or None)
    assert isinstance(got, EncodedWords), got
    return got


def written(encoded: EncodedWords) -> list[str]:
    return [encoded.texts[word.part][word.start : word.end] for word in encoded.spans]


def test_a_worked_example(tmp_path: Path) -> None:
    file = corpora.wordpiece(tmp_path / "tokenizer.json", ["beautiful", "##ly", "don", "'", "t", "stop", "本"])
    got = encode(WordTokenizer(file, 16, truncate=True), " Don't  stop", "Beautifully本\n")
    # [CLS] don ' t stop [SEP] beautiful ##ly 本 [SEP]
    assert got.ids.tolist() == [2, 6, 7, 8, 9, 3, 4, 5, 10, 3]
    assert got.type_ids.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert got.words.tolist() == [SPECIAL, 0, 0, 0, 1, SPECIAL, 2, 2, 3, SPECIAL]
    assert got.spans == (Word(0, 1, 6), Word(0, 8, 12), Word(1, 0, 11), Word(1, 11, 12))
    assert got.texts == (" Don't  stop", "Beautifully本\n")


@pytest.mark.parametrize("max_length", [24, 512])
def test_ids_equal_those_of_the_text_tokenizer(file: Path, max_length: int) -> None:
    texts = [text.encode() for text in corpora.texts(60, seed=2)]
    plain = TextTokenizer(file, max_length, truncate=True)
    words = WordTokenizer(file, max_length, truncate=True)
    for pairs in (None, texts[::-1]):
        for got, expected in zip(words.encode(texts, pairs), plain.encode(texts, pairs), strict=True):
            assert isinstance(got, EncodedWords)
            assert isinstance(expected, Encoded)
            assert got.ids.tolist() == expected.ids.tolist()
            assert got.type_ids.tolist() == expected.type_ids.tolist()


@pytest.mark.parametrize("max_length", [24, 512])
def test_words_equal_those_of_the_reference(file: Path, max_length: int) -> None:
    texts = corpora.texts(50, seed=3)
    tokenizer = WordTokenizer(file, max_length, truncate=True)
    for query in [*((text,) for text in texts), *zip(texts, texts[::-1], strict=True)]:
        got, expected = encode(tokenizer, *query), reference.read(file, query, max_length)
        assert [(word.part, word.start, word.end) for word in got.spans] == expected.spans
        owners = [word if word >= 0 else None for word in got.words.tolist()]
        assert owners == expected.owners
        assert (got.words == SPECIAL).tolist() == expected.special


def test_words_cover_all_of_the_text_except_blanks(file: Path) -> None:
    for max_length in (8, 512):
        tokenizer = WordTokenizer(file, max_length, truncate=True)
        for text in corpora.texts(80, seed=4):
            got = encode(tokenizer, text)
            covered = "".join(written(got))
            assert [c for c in covered if not c.isspace()] == [c for c in text if not c.isspace()]


def test_a_mark_stays_with_its_character(tmp_path: Path) -> None:
    # The byte-level pattern splits Thai vowel signs off as separate words.
    tokenizer = WordTokenizer(corpora.byte_level(tmp_path / "tokenizer.json"), 64, truncate=True)
    assert written(encode(tokenizer, "ที่นี่ ok")) == ["ที่", "นี่", "ok"]


def test_blanks_that_are_tokens_belong_to_no_word(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(corpora.byte_level(tmp_path / "tokenizer.json"), 64, truncate=True)
    got = encode(tokenizer, "one\n\n\ntwo")
    assert BLANK in got.words
    assert written(got) == ["one", "two"]
    assert got.words[0] == got.words[-1] == SPECIAL


def test_words_that_share_a_token_are_joined(tmp_path: Path) -> None:
    file = corpora.words_with_blanks(tmp_path / "tokenizer.json")
    assert "of the" in Tokenizer.from_file(str(file)).encode("all of the others").tokens
    got = encode(WordTokenizer(file, 64, truncate=True), "all of the others")
    assert "of the" in written(got)
    assert "".join(written(got)).replace(" ", "") == "alloftheothers"
    assert sorted(set(got.words.tolist()) - {BLANK}) == list(range(len(got.spans)))


def test_the_text_beyond_the_byte_limit_is_one_word_without_tokens(file: Path) -> None:
    text = " \n" * 300 + "good " * 100 + "日本" * 200 + "end"
    got = encode(WordTokenizer(file, 8, truncate=True), text)
    assert got.texts == (text.lstrip(),)
    assert "".join(written(got)).replace(" ", "") == "".join(text.split())
    assert got.words.max() < len(got.spans) - 1
    assert not got.separable


def test_the_texts_of_short_queries_do_not_need_the_words(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the words were computed")

    monkeypatch.setattr(WordTokenizer, "_words", refuse)
    tokenizer = WordTokenizer(file, 8, truncate=True)
    assert encode(tokenizer, " good  film", "bad\n").texts == (" good  film", "bad\n")
    for query in (("good",), ("good " * 200,), ("good", "bad " * 200)):
        got = encode(tokenizer, *query)
        if len(query[-1]) < 8:
            assert got.texts == query
        else:
            with pytest.raises(AssertionError, match="were computed"):
                _ = got.texts


def test_separable_means_that_words_can_be_tokenised_one_by_one(tmp_path: Path) -> None:
    pieces = corpora.wordpiece(tmp_path / "pieces.json")
    assert encode(WordTokenizer(pieces, 64, truncate=True), "good film").separable
    assert encode(WordTokenizer(pieces, 512, truncate=False), "good film").separable
    # Truncated, or exactly at the limit.
    assert not encode(WordTokenizer(pieces, 8, truncate=True), "good film " * 10).separable
    assert not encode(WordTokenizer(corpora.byte_level(tmp_path / "bytes.json"), 64, truncate=True), "a b").separable
    with_blank = Tokenizer.from_file(str(pieces))
    with_blank.add_tokens(["New York"])
    with_blank.save(str(tmp_path / "blank.json"))
    assert not encode(WordTokenizer(tmp_path / "blank.json", 64, truncate=True), "good film").separable
    whole = Tokenizer.from_file(str(pieces))
    whole.pre_tokenizer = None
    whole.save(str(tmp_path / "whole.json"))
    assert not encode(WordTokenizer(tmp_path / "whole.json", 64, truncate=True), "good film").separable


@pytest.mark.parametrize("truncate", [False, True])
def test_refusals_equal_those_of_the_text_tokenizer(file: Path, truncate: bool) -> None:
    texts = [b"good", b"", b" \n ", b"abc\xff", b"a b c d e f g h i", b"x" * 600, b" " * 600 + b"ab\x80", b"ok"]
    plain = TextTokenizer(file, 8, truncate=truncate)
    words = WordTokenizer(file, 8, truncate=truncate)
    for first, second in ((texts, None), (texts, [b"good"] * len(texts)), ([b"good"] * len(texts), texts)):
        for got, expected in zip(words.encode(first, second), plain.encode(first, second), strict=True):
            assert isinstance(got, InvalidArgument) == isinstance(expected, InvalidArgument)
            if isinstance(got, InvalidArgument):
                assert str(got) == str(expected)
    assert words.encode([], None) == []


def test_arrays_are_of_the_declared_types(file: Path) -> None:
    got = encode(WordTokenizer(file, 32, truncate=True), "good film", "bad film")
    assert got.ids.dtype == got.type_ids.dtype == got.words.dtype == np.int64
