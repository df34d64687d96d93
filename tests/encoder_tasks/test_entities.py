"""Entities compared with transformers' own pipeline over random models and texts, and label schemes by hand."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.encoder_tasks.support import FAMILIES, align, texts, tiny_model, tokenizer
from tidal.encoder_tasks.entities import AGGREGATIONS, Entities, LabelScheme, continued_words, find_entities
from tidal.errors import InvalidArgument

SCHEMES = {
    "iob": ("O", "B-PER", "I-PER", "B-creative-work", "I-creative-work", "I-LOC"),
    "plain": ("NOUN", "VERB", "O", "creative-work", "O-X", "B-O"),
}
Pipeline = Any


@pytest.fixture(scope="module")
def pipeline_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, tuple[str, ...]], Pipeline]:
    from transformers import TokenClassificationPipeline

    folder, made = tmp_path_factory.mktemp("tokenizers"), dict[tuple[str, tuple[str, ...]], Pipeline]()

    def get(family: str, labels: tuple[str, ...]) -> Pipeline:
        if (family, labels) not in made:
            fast = tokenizer(family, folder)
            model = tiny_model("TokenClassification", len(fast), labels)
            made[family, labels] = TokenClassificationPipeline(model=model, tokenizer=fast)
        return made[family, labels]

    return get


def found(pipeline: Pipeline, text: str, logits: Any, labels: tuple[str, ...], aggregation: Any) -> Entities:
    fast = pipeline.tokenizer
    ids, source = align(fast, text)
    own = source.parts == 0
    prefix = getattr(fast.backend_tokenizer.model, "continuing_subword_prefix", None)
    sizes = source.sizes[own] if prefix else None
    continues = continued_words(ids[own], source.offsets[own], text, sizes, fast.unk_token_id)
    return find_entities(logits[own], source.offsets[own], continues, LabelScheme.of(labels), aggregation)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("labels", SCHEMES.values(), ids=SCHEMES)
@settings(max_examples=15)
@given(text=texts)
@example("ninety ( 🎉🎉 ) https://example.com/a?b=c naïve e\u0301te\u0301\u0301 👩\u200d👩\u200d👧")
@example(" \u200b ")
def test_entities_equal_those_of_the_pipeline(
    pipeline_of: Callable[..., Pipeline], family: str, labels: tuple[str, ...], text: str
) -> None:
    import torch

    pipeline = pipeline_of(family, labels)
    (inputs,) = pipeline.preprocess(text, is_split_into_words=False)
    with torch.inference_mode():
        outputs = pipeline.forward(inputs)
    for aggregation in AGGREGATIONS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "does not support real words, using fallback heuristic"
            parameters = pipeline._sanitize_parameters(aggregation_strategy=aggregation)[2]
            expected = pipeline.postprocess([dict(outputs)], **parameters)
        got = found(pipeline, text, outputs["logits"][0].numpy(), labels, aggregation)
        key = "entity" if aggregation == "none" else "entity_group"
        assert got.labels == [each[key] for each in expected]
        assert got.starts.tolist() == [each["start"] for each in expected]
        assert got.ends.tolist() == [each["end"] for each in expected]
        np.testing.assert_allclose(got.scores, np.array([each["score"] for each in expected]), rtol=1e-6)


def chosen(labels: tuple[str, ...], tokens: list[int], aggregation: Any = "simple") -> list[tuple[str, int, int]]:
    """Entities of tokens of one character with a blank after each, with the given labels."""
    logits = np.eye(len(labels), dtype=np.float32)[tokens] * 9
    offsets = np.array([[2 * place, 2 * place + 1] for place in range(len(tokens))], np.int64).reshape(-1, 2)
    got = find_entities(logits, offsets, np.zeros(len(tokens), bool), LabelScheme.of(labels), aggregation)
    return list(zip(got.labels, (got.starts // 2).tolist(), (got.ends // 2).tolist(), strict=True))


CLOSED = {
    "BILOU": ("O", "B-PER", "I-PER", "L-PER", "U-PER", "B-LOC", "I-LOC", "L-LOC", "U-LOC"),
    "BIOES": ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC"),
    "BMES": ("O", "B-PER", "M-PER", "E-PER", "S-PER", "B-LOC", "M-LOC", "E-LOC", "S-LOC"),
}


def closed_by_hand(labels: tuple[str, ...], tokens: list[int]) -> list[tuple[str, int, int]]:
    """Entities of a scheme that marks last tokens, read token by token."""
    entities: list[tuple[str, int, int]] = []
    open_tag = None
    for place, token in enumerate(tokens):
        if labels[token] == "O":
            open_tag = None
            continue
        prefix, tag = labels[token].split("-", 1)
        if open_tag == tag and prefix not in "BUS":
            entities[-1] = (tag, entities[-1][1], place)
        else:
            entities.append((tag, place, place))
        open_tag = None if prefix in "LEUS" else tag
    return entities


@pytest.mark.parametrize("labels", CLOSED.values(), ids=CLOSED)
@given(tokens=st.lists(st.integers(0, 8), max_size=30))
def test_schemes_that_mark_last_tokens(labels: tuple[str, ...], tokens: list[int]) -> None:
    assert chosen(labels, tokens) == closed_by_hand(labels, tokens)


@pytest.mark.parametrize(
    ("labels", "tokens", "expected"),
    [
        # IOB1 marks the begin of an entity only after another of the same tag, IOB2 of every entity.
        (("O", "B-PER", "I-PER"), [2, 2, 1, 2, 0, 2], [("PER", 0, 1), ("PER", 2, 3), ("PER", 5, 5)]),
        # Schemes with holes: no begin, no last token of one tag, no label for tokens outside.
        (("O", "I-PER", "I-LOC"), [1, 1, 2, 0, 1], [("PER", 0, 1), ("LOC", 2, 2), ("PER", 4, 4)]),
        (
            ("O", "B-PER", "L-PER", "B-LOC", "I-LOC"),
            [1, 2, 2, 3, 4, 4, 0],
            [("PER", 0, 1), ("PER", 2, 2), ("LOC", 3, 5)],
        ),
        (("B-PER", "I-PER"), [1, 1, 0, 1], [("PER", 0, 1), ("PER", 2, 3)]),
        # Prefixes of names that belong to no scheme.
        (("O", "U-boat", "L-shape"), [1, 1, 2], [("boat", 0, 1), ("shape", 2, 2)]),
    ],
)
def test_label_schemes(labels: tuple[str, ...], tokens: list[int], expected: list[tuple[str, int, int]]) -> None:
    assert chosen(labels, tokens) == expected


def test_a_label_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="label 1 of 3 has no name; expected a name for each label"):
        LabelScheme.of(["O", "", "B-PER"])


def test_entities_are_written_as_json_with_their_text() -> None:
    entities = Entities(["PER"], np.array([0.5], np.float32), np.array([2]), np.array([5]))
    assert json.loads(entities.json("🎉 e\u0301🎉!")) == [
        {"label": "PER", "score": 0.5, "start": 2, "end": 5, "text": "e\u0301🎉"}
    ]


def test_a_text_without_tokens_has_no_entities() -> None:
    empty = np.zeros((0, 2), np.int64)
    for aggregation in AGGREGATIONS:
        scheme = LabelScheme.of(SCHEMES["iob"])
        got = find_entities(np.zeros((0, 6), np.float32), empty, np.zeros(0, bool), scheme, aggregation)
        assert got.json("") == "[]"
