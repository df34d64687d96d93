"""The server's tokenizer compared with the unmodified Hugging Face one, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from testing.models import make_tiny_classifier
from tidal.errors import InvalidArgument
from tidal.text import Encoded, Texts, TextTokenizer
from tidal.text.words import WordTokenizer

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


@pytest.mark.parametrize("special_type", [0, 2])
def test_types_are_those_of_the_template_for_texts_and_pairs_together(
    folder: Path, tmp_path: Path, special_type: int
) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cls, sep = ((token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A:0 [SEP]:0 [CLS]:{special_type}",
        pair=f"$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:{special_type}",
        special_tokens=[cls, sep],
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.no_padding()
    requests = [Texts([b"a text"]), Texts([b"one", b"two words"], [b"other text", b"x"]), Texts([b"b"])]
    encoded = TextTokenizer(tmp_path / "tokenizer.json", 128).encode_requests(requests)
    for (texts, pairs), rows in zip(requests, encoded, strict=True):
        assert not isinstance(rows, InvalidArgument)
        for index, row in enumerate(rows):
            second = None if pairs is None else pairs[index].decode()
            assert row.type_ids.tolist() == tokenizer.encode(texts[index].decode(), second).type_ids
    singles = TextTokenizer(tmp_path / "tokenizer.json", 128).encode_all([b"a text", b"b"])
    assert [row.type_ids.tolist()[-1] for row in singles] == [special_type] * 2


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
def test_an_invalid_row_is_refused_and_the_others_are_encoded(folder: Path, text: bytes, message: str) -> None:
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
def test_truncation_reports_what_is_wrong_with_a_long_text(folder: Path, text: bytes, message: str) -> None:
    (got,) = TextTokenizer(folder / "tokenizer.json", 16, truncate=True).encode([text])
    assert isinstance(got, InvalidArgument)
    assert message in str(got)


def test_truncation_skips_leading_blanks(folder: Path) -> None:
    tokenizer = TextTokenizer(folder / "tokenizer.json", 16, truncate=True)
    blanks, plain = tokenizer.encode([b" \n" * 5000 + b"good film", b"good film"])
    assert isinstance(blanks, Encoded)
    assert isinstance(plain, Encoded)
    assert blanks.ids.tolist() == plain.ids.tolist()


def test_rows_of_a_request_equal_those_encoded_one_by_one(folder: Path) -> None:
    texts = [text.encode() for text in TEXTS * 20]
    for pairs in (None, texts[::-1]):
        tokenizer = TextTokenizer(folder / "tokenizer.json", 128)
        found = tokenizer.encode_all(texts, pairs)
        for row, expected in zip(found, tokenizer.encode(texts, pairs), strict=True):
            assert isinstance(expected, Encoded)
            assert row.ids.tolist() == expected.ids.tolist()
            assert row.type_ids.tolist() == expected.type_ids.tolist()


def test_a_request_is_tokenised_up_to_its_first_row_that_is_too_long(folder: Path) -> None:
    tokenizer = TextTokenizer(folder / "tokenizer.json", 128)
    spy = Spy(tokenizer._tokenizer)
    tokenizer._tokenizer = spy  # type: ignore[assignment]
    slow = b"!?" * 4000
    with pytest.raises(InvalidArgument, match="text_input row 3 has 8002 tokens; this model reads at most 128"):
        tokenizer.encode_all([b"good"] * 3 + [slow] * 60)
    assert sum(spy.sizes) == 3 * 4 + 8000
    with pytest.raises(InvalidArgument, match="text_input row 63 is empty"):
        tokenizer.encode_all([slow] * 63 + [b""])
    assert sum(spy.sizes) == 3 * 4 + 8000


@given(st.data())
def test_requests_are_tokenised_as_each_alone(folder: Path, data: st.DataObject) -> None:
    """Also those of requests beside one that is refused, and with pairs beside plain texts."""
    tokenizer = TextTokenizer(folder / "tokenizer.json", 8)
    row = st.sampled_from(
        [b"good", b"the food was fine", b"", b"\x80", b"one two three four five six seven", b"x" * 600]
    )
    requests = []
    for _ in range(data.draw(st.integers(0, 6))):
        rows = data.draw(st.lists(row, min_size=1, max_size=4))
        pairs = data.draw(st.none() | st.lists(row, min_size=len(rows), max_size=len(rows)))
        requests.append(Texts(rows, pairs))
    for request, found in zip(requests, tokenizer.encode_requests(requests), strict=True):
        try:
            expected = [(each.ids.tolist(), each.type_ids.tolist()) for each in tokenizer.encode_all(*request)]
        except InvalidArgument as error:
            assert isinstance(found, InvalidArgument)
            assert str(found) == str(error)
        else:
            assert not isinstance(found, InvalidArgument)
            assert [(each.ids.tolist(), each.type_ids.tolist()) for each in found] == expected


def test_requests_that_arrive_together_are_tokenised_in_one_call(folder: Path) -> None:
    tokenizer = TextTokenizer(folder / "tokenizer.json", 128)
    spy = Spy(tokenizer._tokenizer)
    tokenizer._tokenizer = spy  # type: ignore[assignment]
    tokenizer.encode_requests([Texts([b"good"]), Texts([b""]), Texts([b"bad", b"fine"])])
    assert spy.calls == 1


MIB = 1 << 20
PATHOLOGICAL = {
    "no blank": b"x" * (10 * MIB),
    "emoji": "😀".encode() * (10 * MIB // 4),
    "combining characters": b"e" + "\u0301".encode() * (5 * MIB),
    "newlines": b"a" + b"\n" * 1_000_000 + b"b",
    "newlines first": b"\n" * 1_000_000 + b"b",
    "blanks alone": b" " * (10 * MIB),
    "halves of characters": b"\xf0\x9f" * (5 * MIB),
    "brackets": b"[" * (10 * MIB),
}


class Spy:
    """Passes texts on to a tokenizer and records their sizes in bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.sizes, self.calls = tokenizer, [0], 0

    def encode_batch(self, texts: Any, **options: Any) -> Any:
        self.calls += 1
        self.sizes += [len(part.encode()) for text in texts for part in ([text] if isinstance(text, str) else text)]
        return self._tokenizer.encode_batch(texts, **options)

    encode_batch_fast = encode_batch


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("kind", [TextTokenizer, WordTokenizer])
@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_text_of_megabytes_is_refused_or_truncated_before_it_is_tokenised(
    folder: Path, name: str, kind: type[TextTokenizer | WordTokenizer], pair: bool, truncate: bool
) -> None:
    limit = 64 * 128
    tokenizer = kind(folder / "tokenizer.json", 128, truncate=truncate)
    spy = Spy(tokenizer._tokenizer)
    tokenizer._tokenizer = spy  # type: ignore[assignment, union-attr]
    rows, long = [b"good", b"fine"], [b"book", PATHOLOGICAL[name]]
    good, found = tokenizer.encode(rows, long) if pair else tokenizer.encode(long, None)
    assert not isinstance(good, InvalidArgument)
    assert max(spy.sizes) <= limit
    which = "text_pair" if pair else "text_input"
    if not truncate:
        assert isinstance(found, InvalidArgument)
        assert f"{which} row 1 has {len(PATHOLOGICAL[name])} bytes; this model reads at most 128 tokens" in str(found)
    elif name in ("blanks alone", "halves of characters"):
        assert isinstance(found, InvalidArgument)
    else:
        assert not isinstance(found, InvalidArgument)
        assert len(found.ids) <= 128
