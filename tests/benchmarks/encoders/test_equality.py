"""What the benchmark of encoders counts as equal to transformers' answers, and which texts it reads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.encoders import equality
from benchmarks.encoders.equality import Equality, make_claims, read_questions, read_sentences
from benchmarks.encoders.mixed_tasks import _same_words


def ours(label: str = "per", start: int = 3, end: int = 7, score: float = 0.9) -> Any:
    return SimpleNamespace(label=label, start=start, end=end, score=score)


@pytest.mark.parametrize(
    ("found", "equal"),
    [
        ([ours()], True),
        ([ours(score=0.9005)], True),
        ([ours(score=0.902)], False),
        ([ours(label="loc")], False),
        ([ours(start=2)], False),
        ([ours(end=8)], False),
        ([], False),
        ([ours(), ours()], False),
    ],
)
def test_entities_are_equal_with_label_characters_and_score(found: list[Any], equal: bool) -> None:
    for aggregation, name in (("none", "entity"), ("simple", "entity_group")):
        truth = [{name: "per", "start": 3, "end": 7, "score": 0.9}]
        assert equality._same_entities(found, truth, aggregation) is equal


def test_sentences_with_emoji_and_addresses_come_first(tmp_path: Path) -> None:
    (tmp_path / "wnut17").mkdir()
    content = {"dev": "plain\tO\nwords\tO\n\nsmile\tO\n🎉\tO\n\n", "train": "see\tO\nhttp://x\tO\n\nmore\tO"}
    for name, text in content.items():
        with gzip.open(tmp_path / f"wnut17/{name}.conll.gz", "wt", encoding="utf-8") as file:
            file.write(text)
    assert read_sentences(tmp_path, 3) == ["smile 🎉", "see http://x", "plain words"]
    assert read_sentences(tmp_path, 9)[-1] == "more"


def test_questions_are_spread_over_all_articles(tmp_path: Path) -> None:
    (tmp_path / "xquad").mkdir()
    articles = [
        {"paragraphs": [{"context": f"c{n}", "qas": [{"question": f"q{n}a"}, {"question": f"q{n}b"}]}]}
        for n in range(3)
    ]
    with gzip.open(tmp_path / "xquad/en.json.gz", "wt", encoding="utf-8") as file:
        json.dump({"data": articles}, file)
    assert read_questions(tmp_path, "en", 3) == [("q0a", "c0"), ("q1a", "c1"), ("q2a", "c2")]
    assert len(read_questions(tmp_path, "en", 100)) == 6


def test_answers_are_counted_by_text_and_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = [
        SimpleNamespace(candidates=[SimpleNamespace(text="a", start=0, end=1)]),
        SimpleNamespace(candidates=[SimpleNamespace(text="b", start=2, end=3)]),
    ]
    expected = [[["a", 0, 1, 0.9]], [["b", 1, 2, 0.9]]]

    class Double:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Double:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def answer_many(self, model: str, questions: list[str], texts: list[str], top_k: int) -> list[Any]:
            return served[: len(questions)]

    monkeypatch.setattr(equality, "Client", Double)
    monkeypatch.setattr(equality, "_pipeline_answers", lambda *_: expected)
    found = equality.compare_answers("url", tmp_path, tmp_path, {"en": [("q", "a"), ("q", "xxb")]})
    assert (found["en"].compared, found["en"].equal, len(found["en"].different)) == (2, 1, 1)
    claims = {each.name: each for each in make_claims(Equality(4, 4, ()), {**found, "de": Equality(2, 2, ())})}
    assert (claims["entities_equal_transformers"].measured, claims["entities_equal_transformers"].holds) == (1.0, True)
    assert (claims["spans_equal_transformers"].measured, claims["spans_equal_transformers"].holds) == (0.75, False)


def test_words_are_the_same_in_any_order_of_equal_ones() -> None:
    values = np.array([0.0, 2.0, 1.0, 2.0])
    chances = np.exp(values) / np.exp(values).sum()

    def predictions(*ids: int, factor: float = 1.0) -> list[dict[str, Any]]:
        return [{"token_id": each, "score": float(chances[each]) * factor} for each in ids]

    assert _same_words(values, predictions(1, 3), 1e-4)
    assert _same_words(values, predictions(3, 1), 1e-4)
    assert not _same_words(values, predictions(1, 2), 1e-4)
    assert not _same_words(values, predictions(1, 1), 1e-4)
    assert not _same_words(values, predictions(1, 3, factor=1.01), 1e-4)
