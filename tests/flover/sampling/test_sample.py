"""Sampling compared with transformers' own logits processors, and its independence of other rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tidal.flover.sampling import UNDEFINED, Sampler, SamplingParams, sample_tokens
from tidal.flover.sampling.sample import _select, candidates

VOCABULARY = 300
PROMPT = np.array([3, 5, 5, 250], np.int64)
SETTINGS = [
    SamplingParams(*values) for values in itertools.product((0.3, 1.0, 3.0), (0, 7), (0.01, 0.5, 0.93, 1.0), (1.0, 1.4))
]
GREEDY = SamplingParams(temperature=0)


def logits(rows: int, seed: int, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(rows, VOCABULARY)) * scale).astype(np.float32)


def reference(scores: np.ndarray, params: SamplingParams, history: np.ndarray) -> np.ndarray:
    """Return the probabilities [vocabulary] that transformers samples with."""
    processors = LogitsProcessorList()
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    done = processors(torch.tensor(history)[None], torch.tensor(scores)[None].clone())
    return torch.softmax(done[0].double(), -1).numpy()


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_tokens_have_the_probabilities_of_transformers(params: SamplingParams) -> None:
    """A token's probability is the share of draws in [0, 1) that select it."""
    for seed in range(3):
        scores = logits(1, seed)[0]
        sampler = Sampler(params, PROMPT, VOCABULARY)
        seen = Sampler(params, PROMPT, VOCABULARY).seen
        penalised = scores.copy()
        if seen is not None:
            values = penalised[seen]
            penalised[seen] = np.where(values < 0, values * 1.4, values / 1.4).astype(np.float32)
        tokens, weights = candidates(penalised, sampler)
        found = np.zeros(VOCABULARY)
        found[tokens] = weights / weights.sum(dtype=np.float64)
        np.testing.assert_allclose(found, reference(scores, params, PROMPT), atol=1e-6)


@given(seed=st.integers(0, 99), vocabulary=st.integers(1, 2000), top_k=st.integers(1, 2000),
       top_p=st.floats(0.01, 0.999), scale=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
       draw=st.floats(0, 1, exclude_max=True))  # fmt: skip
def test_candidates_equal_those_of_a_full_sort(
    seed: int, vocabulary: int, top_k: int, top_p: float, scale: float, draw: float
) -> None:
    random = np.random.default_rng(seed)
    # Halves, so that there are ties.
    scores = np.round(random.normal(size=vocabulary) * scale * 2).astype(np.float32) / 2
    tokens, _ = candidates(scores, Sampler(SamplingParams(top_k=top_k), PROMPT[:0], vocabulary))
    wanted = np.flatnonzero(scores >= np.sort(scores)[-min(top_k, vocabulary)])
    np.testing.assert_array_equal(tokens, wanted)
    tokens, weights = candidates(scores, Sampler(SamplingParams(top_p=top_p), PROMPT[:0], vocabulary))
    shares = np.exp(scores.astype(np.float64) - scores.max())
    order = np.argsort(-shares, kind="stable")
    before = (np.cumsum(shares[order]) - shares[order]) / shares.sum()
    assert set(order[before < top_p - 1e-6]) <= set(tokens) <= set(order[before < top_p + 1e-6])
    row, sums = _select(weights, draw), np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    assert weights[row] > 0
    assert sums[row] - weights[row] / weights.sum() - 1e-6 <= draw <= sums[row] + 1e-6


@pytest.mark.parametrize("params", SETTINGS[::11], ids=str)
def test_draws_follow_these_probabilities(params: SamplingParams) -> None:
    """χ² test against the probabilities of transformers, at a significance of 1 in 10,000."""
    scores, draws = logits(1, 11, scale=1.5), 3000
    counts = np.zeros(VOCABULARY)
    for seed in range(draws):
        sampler = Sampler(SamplingParams(*_with_seed(params, seed)), PROMPT, VOCABULARY)
        counts[sample_tokens(scores, [sampler])[0]] += 1
    expected = reference(scores[0], params, PROMPT) * draws
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    parts = [*zip(counts[common], expected[common], strict=True), (counts[~common].sum(), expected[~common].sum())]
    value = sum((got - wanted) ** 2 / wanted for got, wanted in parts if wanted > 0)
    freedom = max(1, common.sum())
    assert value < freedom + 3.72 * np.sqrt(2 * freedom) + 14


def _with_seed(params: SamplingParams, seed: int) -> tuple[float, int, float, float, int]:
    return params.temperature, params.top_k, params.top_p, params.repetition_penalty, seed


@pytest.mark.parametrize("penalty", [1.0, 1.7, 0.6])
def test_greedy_is_the_likeliest_after_the_penalty(penalty: float) -> None:
    rows = logits(6, 5)
    params = SamplingParams(temperature=0, repetition_penalty=penalty)
    for scores, token in zip(
        rows, sample_tokens(rows, [Sampler(params, PROMPT, VOCABULARY) for _ in rows]), strict=True
    ):
        history = torch.tensor(PROMPT)[None]
        wanted = RepetitionPenaltyLogitsProcessor(penalty)(history, torch.tensor(scores)[None].clone())
        assert token == wanted.argmax()


@given(st.lists(st.sampled_from([*SETTINGS, GREEDY, SamplingParams(temperature=0, repetition_penalty=1.3)]),
                min_size=1, max_size=6), st.integers(0, 5))  # fmt: skip
def test_tokens_do_not_depend_on_other_rows(settings: list[SamplingParams], row: int) -> None:
    row %= len(settings)
    mine = [
        Sampler(SamplingParams(*_with_seed(each, number)), PROMPT, VOCABULARY) for number, each in enumerate(settings)
    ]
    alone = Sampler(SamplingParams(*_with_seed(settings[row], row)), PROMPT, VOCABULARY)
    for step in range(4):
        rows = logits(len(settings), step)
        before = rows.copy()
        together = sample_tokens(rows, mine)
        assert sample_tokens(rows[row : row + 1], [alone])[0] == together[row]
        np.testing.assert_array_equal(rows, before)


def test_generated_tokens_are_penalised_like_the_prompt() -> None:
    scores = np.zeros((1, VOCABULARY), np.float32)
    scores[0, [40, 41]] = 3.0, 2.9
    sampler = Sampler(SamplingParams(temperature=0, repetition_penalty=2), PROMPT, VOCABULARY)
    assert [int(sample_tokens(scores, [sampler])[0]) for _ in range(2)] == [40, 41]


def test_sampling_repeats_with_a_seed_only() -> None:
    rows = logits(1, 2, scale=0.1)

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed), PROMPT, VOCABULARY)
        return [int(sample_tokens(rows, [sampler])[0]) for _ in range(20)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)
    assert tokens(None) != tokens(None)


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=3, top_p=0.5)], ids=str
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_undefined_logits_affect_their_row_only(params: SamplingParams, bad: float) -> None:
    rows = logits(3, 1)
    rows[1, 17] = bad
    tokens = sample_tokens(rows, [Sampler(params, PROMPT, VOCABULARY) for _ in rows])
    assert tokens[1] == UNDEFINED
    assert min(tokens[0], tokens[2]) >= 0
    assert sample_tokens(np.full((1, VOCABULARY), -np.inf, np.float32), [Sampler(params, PROMPT, VOCABULARY)])[0] < 0


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    rows = logits(1, 3)
    token = sample_tokens(rows, [Sampler(SamplingParams(temperature, seed=1), PROMPT, VOCABULARY)])[0]
    assert 0 <= token < VOCABULARY
    if temperature < 1e-3:
        assert token == rows.argmax()
