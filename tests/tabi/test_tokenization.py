"""The tokens of each level: reused where tokenizers are the same, and as many as its inputs hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.tabi.serving import VERSION, cascades, word_id, write_cascade
from tidal.errors import InvalidArgument
from tidal.tabi.tokenization import LevelTokenizers, QueryTexts
from tidal.text.words import EncodedWords, Words


def tokenizers_of(folder: Path, *, truncate: bool = False, **made: Any) -> LevelTokenizers:
    return LevelTokenizers(write_cascade(folder, cascades(), **made), folder / str(VERSION), truncate=truncate)


def encode(tokenizers: LevelTokenizers, level: int, queries: Sequence[QueryTexts]) -> list[EncodedWords]:
    """Tokenise the queries of one request; raises its error."""
    (encoded,) = tokenizers.encode(level, [queries])
    if isinstance(encoded, InvalidArgument):
        raise encoded
    return encoded


def words(encoded: EncodedWords, first_id: int = 0) -> list[int]:
    return (encoded.ids[1:-1] - first_id - 4).tolist()


def test_levels_with_the_same_tokenizer_share_the_tokens(tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path)
    (query,) = encode(made, 0, [(b"a drop b",)])
    assert made.encode_next(0, 1, query, None, 0.5).encoded is query
    assert made.encode_next(0, 1, query, np.ones(5, np.float32), None).encoded is query


def test_words_are_not_computed_where_nothing_is_pruned(tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path)
    (read,) = encode(made, 0, [(b"a drop b",)])

    def refuse() -> Words:
        raise AssertionError("the words were computed")

    query = EncodedWords(read.ids, read.type_ids, refuse)
    assert made.encode_next(0, 1, query, None, None).encoded is query
    with pytest.raises(AssertionError, match="were computed"):
        made.encode_next(0, 1, query, np.ones(5, np.float32), 0.5)


@pytest.mark.parametrize("first_id", [0, 100])
def test_pruned_queries_are_the_tokens_of_the_pruned_text(first_id: int, tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path, tokenizers=(0, first_id))
    (query,) = encode(made, 0, [(b"a drop b-c drop d",)])
    importance = np.where(query.ids == word_id("drop"), 0.0, 1.0).astype(np.float32)
    pruned = made.encode_next(0, 1, query, importance, 0.5)
    assert (pruned.seen, pruned.removed) == (5, 2)
    assert pruned.encoded.texts == ("a b-c d",)
    (again,) = encode(made, 1, [(b"a b-c d",)])
    assert pruned.encoded.ids.tolist() == again.ids.tolist()
    assert pruned.encoded.words.tolist() == again.words.tolist()


def test_a_level_of_longer_inputs_gets_the_words_that_the_shorter_one_truncated(tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path, lengths=(5, 16))
    (query,) = encode(made, 0, [(b"a drop b c d",)])
    assert len(query.ids) == 5
    whole = made.encode_next(0, 1, query, None, None).encoded
    assert len(whole.ids) == 7
    importance = np.where(query.ids == word_id("drop"), 0.0, 1.0).astype(np.float32)
    pruned = made.encode_next(0, 1, query, importance, 0.5)
    assert pruned.encoded.texts == ("a b c d",)
    assert len(pruned.encoded.ids) == 6
    assert (pruned.seen, pruned.removed) == (5, 1)


def test_a_level_of_shorter_inputs_truncates_the_text(tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path, lengths=(16, 5))
    (query,) = encode(made, 0, [(b"a drop b c d",)])
    assert len(made.encode_next(0, 1, query, None, None).encoded.ids) == 5
    importance = np.where(query.ids == word_id("drop"), 0.0, 1.0).astype(np.float32)
    assert words(made.encode_next(0, 1, query, importance, 0.5).encoded) == words(encode(made, 1, [(b"a b c",)])[0])


def test_a_text_too_long_for_every_level_is_refused_unless_truncated(tmp_path: Path) -> None:
    long = (b"a b c d e a b",)
    made = tokenizers_of(tmp_path, lengths=(5, 8))
    assert len(encode(made, 0, [(b"a b c d e a",)])[0].ids) == 5
    with pytest.raises(InvalidArgument, match="text_input row 1 has 9 tokens; this model reads at most 8"):
        encode(made, 0, [(b"a",), long])
    assert len(encode(tokenizers_of(tmp_path, lengths=(5, 8), truncate=True), 0, [long])[0].ids) == 5


def test_a_text_may_fit_only_the_level_with_another_tokenizer(tmp_path: Path) -> None:
    manifest = write_cascade(tmp_path, cascades(), tokenizers=(0, 100), lengths=(8, 8))
    file = tmp_path / str(VERSION) / manifest.levels[1].tokenizer.file
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # a token for "a-b", which are three for the first level
    tokenizer.save(str(file))
    made = LevelTokenizers(manifest, tmp_path / str(VERSION), truncate=False)
    for level in (0, 1):
        assert len(encode(made, level, [(b"a-b a-b a-b",)])[0].ids) == (8, 5)[level]
        with pytest.raises(InvalidArgument, match="text_input row 0 has 9 tokens; this model reads at most 8"):
            encode(made, level, [(b"a b c d e a b",)])


def test_pairs(tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path, pairs=True)
    (query,) = encode(made, 0, [(b"a drop", b"drop b")])
    importance = np.where(query.ids == word_id("drop"), 0.0, 1.0).astype(np.float32)
    pruned = made.encode_next(0, 1, query, importance, 0.5).encoded
    assert pruned.texts == ("a", "b")
    assert pruned.type_ids.tolist() == [0, 0, 0, 1, 1]


def test_requests_are_tokenised_together_and_refused_one_by_one(tmp_path: Path) -> None:
    made = tokenizers_of(tmp_path, lengths=(5, 8))
    requests: list[list[QueryTexts]] = [
        [(b"a",), (b"b c",)],
        [(b"a",), (b" ",)],
        [(b"a b c d e a",)],  # truncated for this level, but not for the other
        [(b"a b c d e a b",)],
        [(b"d",)],
    ]
    together = made.encode(0, requests)
    first, blank, longer, too_long, last = together
    assert isinstance(first, list)
    assert isinstance(longer, list)
    assert isinstance(last, list)
    assert [words(each) for each in first] == [[word_id("a") - 4], [word_id("b") - 4, word_id("c") - 4]]
    assert [words(each) for each in last] == [[word_id("d") - 4]]
    assert len(longer[0].ids) == 5
    assert str(blank) == "text_input row 1 is empty; accepted: a text of at least one word"
    assert str(too_long) == "text_input row 0 has 9 tokens; this model reads at most 8"
