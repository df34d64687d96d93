"""The server's tokenizer against the unmodified Hugging Face one, and its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import make_tiny_classifier
from tidal.errors import InvalidArgument
from tidal.text import Encoded, TextTokenizer

TEXTS = ["book a table for two", "Ünïcödé — 日本語 emoji 🎉", "a", "tabs\tand\nnewlines  too", "unbelievably" * 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("tiny"))


def test_ids_equal_those_of_the_models_own_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder)
    tokenizer = TextTokenizer(folder / "tokenizer.json", 128)
    for got, text in zip(tokenizer.encode([t.encode() for t in TEXTS]), TEXTS, strict=True):
        assert isinstance(got, Encoded)
        assert got.ids.tolist() == reference(text)["input_ids"]
    pairs = list(reversed(TEXTS))
    encoded = tokenizer.encode([t.encode() for t in TEXTS], [p.encode() for p in pairs])
    for got, text, pair in zip(encoded, TEXTS, pairs, strict=True):
        assert isinstance(got, Encoded)
        expected = reference(text, pair)
        assert got.ids.tolist() == expected["input_ids"]
        assert got.type_ids.tolist() == expected["token_type_ids"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "text_input row 1 is empty"),
        (b"  \n ", "text_input row 1 is empty"),
        (b"abc\xff\xfe", "text_input row 1 is not valid UTF-8 at byte 3"),
        (b"a b " * 100, "text_input row 1 has 202 tokens; this model reads at most 128"),
        (b"x" * 8193, "8193 bytes; this model reads at most 128 tokens"),
    ],
)
def test_one_bad_row_is_told_and_the_others_are_read(folder: Path, text: bytes, message: str) -> None:
    good, bad, other = TextTokenizer(folder / "tokenizer.json", 128).encode([b"good", text, b"other"])
    assert isinstance(good, Encoded)
    assert isinstance(other, Encoded)
    assert isinstance(bad, InvalidArgument)
    assert message in str(bad)


def test_truncation_keeps_the_special_tokens_and_never_cuts_a_character(folder: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder)
    tokenizer = TextTokenizer(folder / "tokenizer.json", 16, truncate=True)
    text = "one two three " * 50
    (got,) = tokenizer.encode([text.encode()])
    assert isinstance(got, Encoded)
    assert got.ids.tolist() == reference(text, truncation=True, max_length=16)["input_ids"]
    (huge,) = tokenizer.encode(["é".encode() * 100_001])
    assert isinstance(huge, Encoded)
    assert len(huge.ids) <= 16


@pytest.mark.parametrize("before", range(4))
def test_truncation_cuts_at_whole_characters_of_any_width(folder: Path, before: int) -> None:
    tokenizer = TextTokenizer(folder / "tokenizer.json", 16, truncate=True)
    for character in ("é", "日", "🎉"):
        (got,) = tokenizer.encode([b"a" * before + character.encode() * 1000])
        assert isinstance(got, Encoded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\x80" * 5000, "text_input row 0 is not valid UTF-8 at byte 0"),
        (b" " * 5000 + b"ab\x80cd", "text_input row 0 is not valid UTF-8 at byte 5002"),
        (b" " * 5000, "text_input row 0 is empty"),
    ],
)
def test_truncation_says_what_is_wrong_with_a_long_text(folder: Path, text: bytes, message: str) -> None:
    (got,) = TextTokenizer(folder / "tokenizer.json", 16, truncate=True).encode([text])
    assert isinstance(got, InvalidArgument)
    assert message in str(got)


def test_truncation_reads_the_words_after_many_blanks(folder: Path) -> None:
    tokenizer = TextTokenizer(folder / "tokenizer.json", 16, truncate=True)
    blanks, plain = tokenizer.encode([b" \n" * 5000 + b"good film", b"good film"])
    assert isinstance(blanks, Encoded)
    assert isinstance(plain, Encoded)
    assert blanks.ids.tolist() == plain.ids.tolist()
