"""Answers to questions compared with those of transformers' pipeline, which `record_answers` recorded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.encoder_tasks.fixed import ANSWERS, FAMILIES, fixed_tokenizer, questions, scores_of
from tests.encoder_tasks.support import source_of
from tidal.encoder_tasks.spans import Answer, Window, best_answers, word_bounds
from tidal.encoder_tasks.windows import cut_windows

TOKENIZERS = {family: fixed_tokenizer(family) for family in FAMILIES}


def answer(case: dict[str, Any]) -> list[Answer]:
    ids, source = source_of(TOKENIZERS[case["family"]], case["question"], case["context"])
    windows = []
    for tokens in cut_windows(source.parts == 1, case["max_length"], case["overlap"]).tokens:
        context = source.parts[tokens] == 1
        starts, ends = word_bounds(source.offsets[tokens], np.where(context, source.words[tokens], -1))
        windows.append(Window(*scores_of(ids[tokens]), context, starts, ends))
    options = {name: case[name] for name in ("top_k", "max_tokens", "impossible")}
    return best_answers(windows, case["context"], **options)


def test_answers_equal_those_of_the_pipeline() -> None:
    recorded = json.loads(ANSWERS.read_text())["answers"]
    cases = questions(len(recorded), seed=7)
    for case, expected in zip(cases, recorded, strict=True):
        got = answer(case)
        # The pipeline fills up with spans of probability 0 if there are no others.
        likely = [each for each in expected if each[1] > 0]
        assert [[each.text, each.start, each.end] for each in got] == [[text, *place] for text, _, *place in likely], (
            case
        )
        np.testing.assert_allclose([each.score for each in got], [each[1] for each in likely], rtol=1e-5)
    assert sum(len(case["context"]) > 2 * case["max_length"] for case in cases) > 10, "few contexts had several windows"
    assert sum(each[0][0] == "" for each in recorded) > 5, "few contexts had no answer"


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_spans_are_those_of_a_search_over_all(length: int, max_tokens: int, top_k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    begin, end = rng.standard_normal((2, length + 1)).astype(np.float32)
    context = np.append(False, rng.random(length) < 0.7)
    places = np.arange(length + 1)
    text = "".join(chr(ord("a") + place) for place in range(length + 1))
    got = best_answers([Window(begin, end, context, places, places + 1)], text, top_k=top_k, max_tokens=max_tokens)
    kept = context.copy()
    kept[0] = True
    first, last = (np.exp(each) * kept / (np.exp(each) * kept).sum() for each in (begin, end))
    spans = {
        text[start : stop + 1]: first[start] * last[stop]
        for start in places[context]
        for stop in places[context]
        if start <= stop < start + max_tokens
    }
    expected = sorted(spans.items(), key=lambda span: -span[1])[:top_k]
    assert [each.text for each in got] == [name for name, _ in expected]
    np.testing.assert_allclose([each.score for each in got], [score for _, score in expected], rtol=1e-4)


@pytest.mark.parametrize("impossible", [False, True])
def test_a_context_without_tokens_has_no_answer(impossible: bool) -> None:
    ids, source = source_of(TOKENIZERS["wordpiece"], "Who?", "\u200b")
    context = source.parts == 1
    assert not context.any()
    window = Window(*scores_of(ids), context, *word_bounds(source.offsets, source.words))
    got = best_answers([window], "\u200b", impossible=impossible)
    assert got == ([Answer("", 1.0, 0, 0)] if impossible else [])
