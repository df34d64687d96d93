"""Combinations of levels: their order, and the pruning between them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tabi.builders.toy import OVERCONFIDENT, Toy
from tidal.tabi.pruning import kept_words, prune_text
from tidal.text.words import EncodedWords, WordTokenizer
from tidal_builders.tabi import search as searching
from tidal_builders.tabi.combinations import CombinationRunner, ascending
from tidal_builders.tabi.data import CALIBRATION, REPORT, CollectedLevel, LevelOutputs
from tidal_builders.tabi.search import MAX_PRUNING_LOSS, SCALES, search


def test_levels_ascend_by_score_and_among_equals_by_latency(tokenizer: WordTokenizer) -> None:
    toy = Toy(noise=(0.1, 1.0, 1.0, 2.5), base_ms=(4.0, 3.0, 2.0, 1.0))
    data = toy.data(300)
    levels = toy.facts(data, tokenizer)
    # The third has the outputs of the second and is faster.
    levels[2] = CollectedLevel(
        "same", dataclasses.replace(levels[1].outputs, latency_ms=levels[2].outputs.latency_ms), tokenizer
    )
    assert ascending(data, levels, "accuracy") == [3, 2, 1, 0]
    # On the report part the first is by far the worst, which must not affect the order.
    rows = data.part == REPORT
    levels[0] = CollectedLevel(
        "first",
        dataclasses.replace(levels[0].outputs, logits=np.where(rows[:, None], -9.0, 1) * levels[0].outputs.logits),
        tokenizer,
    )
    assert ascending(data, levels, "accuracy") == [3, 2, 1, 0]


def test_pruning_scales_rise_until_the_last_level_loses_2_points(
    tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SLOPES", searching.SLOPES[1:2])
    monkeypatch.setattr(searching, "CUTOFFS", searching.CUTOFFS[::6])
    toy = Toy(**OVERCONFIDENT, seed=3)
    data = toy.data(400)
    levels = toy.facts(data, tokenizer)
    result = search(data, levels, toy.rerun, metric="accuracy")
    known = np.flatnonzero(data.part != REPORT)
    calibration = np.flatnonzero(data.part == CALIBRATION)
    losses = []
    for scale in SCALES:
        texts = [_pruned(tokenizer, data.texts[row], levels[0].outputs.importance[row], scale) for row in calibration]
        right = toy.outputs(1, texts).logits.argmax(axis=1) == data.truth[calibration]
        whole = levels[1].outputs.logits[calibration].argmax(axis=1) == data.truth[calibration]
        losses.append(whole.mean() - right.mean())
        if losses[-1] > MAX_PRUNING_LOSS:
            break
    assert SCALES[:3] == (0.5, 0.6, 0.7)
    # The first scale that loses more than the limit is run, and none above it.
    tried = len(losses)
    assert 1 < tried < len(SCALES)
    assert sum(len(texts) == len(known) for _, texts in toy.calls) == tried
    scales = {each.pruning for each in result.candidates}
    assert scales <= {None, *SCALES[: tried - 1]}
    assert scales - {None}


@pytest.mark.parametrize(("wrong", "prunes"), [(5, True), (6, False)])
def test_a_loss_equal_to_the_limit_is_accepted(
    tokenizer: WordTokenizer, monkeypatch: pytest.MonkeyPatch, wrong: int, prunes: bool
) -> None:
    toy = Toy(**OVERCONFIDENT)
    data = toy.data(300)
    levels = toy.facts(data, tokenizer)
    known = np.flatnonzero(data.part != REPORT)
    assert len(known) != len(data.part) - len(known)
    logits = levels[1].outputs.logits[known].copy()
    calibration = data.part[known] == CALIBRATION
    right = np.flatnonzero((logits.argmax(axis=1) == data.truth[known]) & calibration)
    logits[right[:wrong]] *= -1
    monkeypatch.setattr(searching, "MAX_PRUNING_LOSS", 5 / calibration.sum())

    def rerun(level: int, texts: tuple[tuple[str, ...], ...], /) -> LevelOutputs:
        if len(texts) != len(known):
            return toy.outputs(level, texts)
        return LevelOutputs(logits, None, np.full(len(texts), 0.1))

    result = search(data, levels, rerun, metric="accuracy")
    assert any(each.pruning is not None for each in result.candidates) == prunes


def _pruned(tokenizer: WordTokenizer, text: tuple[str, ...], importance: np.ndarray, scale: float) -> tuple[str, ...]:
    (encoded,) = tokenizer.encode([text[0].encode()], None if len(text) == 1 else [text[1].encode()])
    assert isinstance(encoded, EncodedWords)
    return prune_text(encoded.texts, encoded.spans, kept_words(encoded, importance, scale))


@pytest.mark.parametrize("pairs", [False, True])
def test_a_chain_of_three_prunes_step_by_step(tokenizer: WordTokenizer, pairs: bool) -> None:
    toy = Toy(noise=(1.0, 0.5, 0.1), base_ms=(1.0, 2.0, 4.0))
    data = toy.data(60, pairs=pairs)
    levels = toy.facts(data, tokenizer)
    rows = np.arange(10, 40)
    run = CombinationRunner(data.texts, levels, toy.rerun).run((0, 1, 2), 0.8, rows)
    assert [level for level, _ in toy.calls] == [1, 2]
    for place, row in enumerate(rows):
        once = _pruned(tokenizer, data.texts[row], levels[0].outputs.importance[row], 0.8)
        assert toy.calls[0][1][place] == once
        read = toy.outputs(1, [once])
        twice = _pruned(tokenizer, once, read.importance[0], 0.8)
        assert toy.calls[1][1][place] == twice
        assert len(twice) == 1 + pairs
        assert all(twice)
        had, left = _words(data.texts[row]), [_words(once), _words(twice)]
        assert run.words[place] == had
        assert run.removed[:, place].tolist() == [had - left[0], had - left[1]]
        assert np.array_equal(run.outputs[0].logits[place], levels[0].outputs.logits[row])
        assert np.array_equal(run.outputs[1].logits[place], read.logits[0])
        assert run.outputs[2].latency_ms[place] == toy.outputs(2, [twice]).latency_ms[0]
    assert run.removed[0].sum() > 0
    assert (run.removed[1] > run.removed[0]).any()


def _words(text: tuple[str, ...]) -> int:
    return sum(len(part.split()) for part in text)


@given(st.integers(0, 40))
@settings(deadline=None, max_examples=10)
def test_a_scale_near_0_prunes_nothing(tokenizer: WordTokenizer, seed: int) -> None:
    toy = Toy(noise=(1.0, 0.1), base_ms=(1.0, 2.0), seed=seed)
    data = toy.data(20)
    passes = CombinationRunner(data.texts, toy.facts(data, tokenizer), toy.rerun)
    whole, least = (passes.run((0, 1), scale, np.arange(20)) for scale in (None, 1e-9))
    assert toy.calls[0][1] == data.texts
    assert least.removed.sum() == 0
    assert np.array_equal(whole.outputs[1].logits, least.outputs[1].logits)
