from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from testing.models import make_tiny_classifier
from tidal.encoder_tasks.reader import read_requests, read_rows
from tidal.errors import Internal, InvalidArgument, TidalError
from tidal.text import Encoded, Texts, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(make_tiny_classifier(tmp_path_factory.mktemp("tiny")) / "tokenizer.json", 16)


def texts(*values: bytes) -> np.ndarray[Any, Any]:
    return np.array(values, object)[:, None]


def ids(*rows: list[int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64)


def test_padding_at_the_end_is_cut_and_masks_inside_are_kept(tokenizer: TextTokenizer) -> None:
    rows = read_rows(
        {"input_ids": ids([2, 5, 6, 0], [2, 5, 0, 0]), "attention_mask": ids([1, 0, 1, 0], [1, 1, 0, 0])}, tokenizer
    )
    assert [row.ids.tolist() for row in rows] == [[2, 5, 6], [2, 5]]
    assert [row.mask.tolist() for row in rows] == [[1, 0, 1], [1, 1]]


def test_text_and_its_ids_read_the_same(tokenizer: TextTokenizer) -> None:
    (from_text,) = read_rows({"text_input": texts(b"one two")}, tokenizer)
    (from_ids,) = read_rows({"input_ids": from_text.ids[None]}, tokenizer)
    assert from_ids.ids.tolist() == from_text.ids.tolist()
    assert from_ids.mask.tolist() == from_text.mask.tolist()


def test_ids_may_have_gaps(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"[UNK]": 0, "one": 7}, unk_token="[UNK]")).save(str(file))
    (row,) = read_rows({"input_ids": ids([7])}, TextTokenizer(file, 16))
    assert row.ids.tolist() == [7]
    with pytest.raises(InvalidArgument, match="accepted are 0 to 7"):
        read_rows({"input_ids": ids([8])}, TextTokenizer(file, 16))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "neither text_input nor input_ids"),
        ({"text_input": texts(b"a"), "input_ids": ids([1])}, "both text_input and input_ids"),
        ({"text_pair": texts(b"a")}, "text_pair was sent without text_input"),
        ({"text_input": texts(b"a"), "attention_mask": ids([1])}, "attention_mask was sent with text_input"),
        ({"text_input": np.array([[b"a", b"b"]], object)}, r"shape \[1, 2\]; expected \[rows, 1\]"),
        (
            {"text_input": texts(b"a", b"b"), "text_pair": texts(b"a")},
            "text_pair has 1 rows; expected 2, as text_input",
        ),
        ({"text_input": texts(b"ok", b"\xff")}, "row 1 is not valid UTF-8"),
        ({"input_ids": np.zeros((1, 0), np.int64)}, r"shape \[1, 0\]"),
        ({"input_ids": ids([1, -1])}, "row 0 has the id -1 at position 1"),
        ({"input_ids": ids([1], [10**9])}, "row 1 has the id 1000000000 at position 0"),
        ({"input_ids": ids([1, 2]), "attention_mask": ids([1])}, r"attention_mask has shape \[1, 1\]"),
        ({"input_ids": ids([1, 2]), "attention_mask": ids([1, 2])}, "values other than 0 and 1"),
        ({"input_ids": ids([1, 2]), "token_type_ids": ids([0, 5])}, "token_type_ids has values other"),
        ({"input_ids": ids([1], [1]), "attention_mask": ids([1], [0])}, "row 1 is all 0"),
        ({"input_ids": ids([1] * 17)}, "17 tokens; this model reads at most 16"),
    ],
)
def test_refusals(tokenizer: TextTokenizer, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_rows(inputs, tokenizer)


def test_one_request_does_not_fail_the_others(tokenizer: TextTokenizer) -> None:
    sent = [
        {"text_input": texts(b"one two", b"good")},
        {},
        {"input_ids": ids([2, 5, 6])},
        {"text_input": texts(b"")},
        {"text_input": texts(b"bad"), "text_pair": texts(b"fine")},
    ]
    found = read_requests(sent, tokenizer)
    for inputs, rows in zip(sent, found, strict=True):
        try:
            expected = read_rows(inputs, tokenizer)
        except InvalidArgument as error:
            assert str(rows) == str(error)
        else:
            assert not isinstance(rows, TidalError)
            assert [[part.tolist() for part in row[:3]] for row in rows] == [
                [part.tolist() for part in row[:3]] for row in expected
            ]
    assert [isinstance(rows, TidalError) for rows in found] == [False, True, False, True, False]


def test_a_failure_of_the_tokenizer_is_that_of_its_request(tokenizer: TextTokenizer) -> None:
    class Failing(TextTokenizer):
        def encode_requests(self, requests: Sequence[Texts]) -> list[list[Encoded] | InvalidArgument]:
            if any(b"bomb" in each.texts for each in requests):
                raise RuntimeError("no such state")
            return tokenizer.encode_requests(requests)

    failing = object.__new__(Failing)
    good, bad = read_requests([{"text_input": texts(b"good")}, {"text_input": texts(b"bomb")}], failing)
    assert isinstance(good, list)
    assert isinstance(bad, Internal)
    assert "no such state" in str(bad)
