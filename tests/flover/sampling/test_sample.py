"""Sampling compared with transformers' own logits processors and OpenAI's definitions, and its independence of rows."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tidal.flover.sampling import UNDEFINED, Sampler, SamplingParams, sample_tokens, token_logprobs
from tidal.flover.sampling.draw import _BLOCK, _blocks, _most_likely, keep_nucleus, select
from tidal.flover.sampling.scores import adjust

VOCABULARY = 300
PROMPT = np.array([3, 5, 5, 250], np.int64)
TEXT = (7, 9, 9, 9, 250)
SETTINGS = [
    *(SamplingParams(*values) for values in itertools.product((0.3, 1.0), (0, 7), (0.01, 0.5, 0.93, 1.0), (1.0, 1.4))),
    SamplingParams(min_p=0.1),
    SamplingParams(2.0, top_p=0.8, min_p=0.2),
    SamplingParams(top_k=30, min_p=0.05),
    SamplingParams(presence_penalty=1.5),
    SamplingParams(frequency_penalty=-0.5, presence_penalty=0.5, repetition_penalty=1.2),
    SamplingParams(logit_bias=((9, 4.0), (17, -100.0), (250, -1.5)), repetition_penalty=1.3),
    SamplingParams(min_tokens=9, logit_bias=((2, 5.0),)),
]
ENDING = (2, 8)
GREEDY = SamplingParams(temperature=0)


def logits(rows: int, seed: int, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(rows, VOCABULARY)) * scale).astype(np.float32)


def sampler(params: SamplingParams, seed: int | None = None) -> Sampler:
    """A sampler behind `PROMPT` and `TEXT`."""
    made = Sampler(dataclasses.replace(params, seed=seed), PROMPT, ENDING)
    for token in TEXT:
        made.record(token)
    return made


def reference(scores: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return the probabilities [vocabulary] that transformers samples with behind `PROMPT` and `TEXT`."""
    processors = LogitsProcessorList()
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias}))
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(_openai_penalties(params))
    if params.min_tokens:
        processors.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), params.min_tokens, list(ENDING)))
    processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(MinPLogitsWarper(params.min_p))
    history = torch.tensor([*PROMPT, *TEXT])[None]
    done = processors(history, torch.tensor(scores)[None].clone())
    return torch.softmax(done[0].double(), -1).numpy()


def _openai_penalties(params: SamplingParams):  # type: ignore[no-untyped-def]
    """mu[j] -> mu[j] - c[j] * frequency_penalty - float(c[j] > 0) * presence_penalty (OpenAI's API reference)."""

    def penalise(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(torch.tensor(TEXT), minlength=VOCABULARY)
        return scores - counts * params.frequency_penalty - (counts > 0).float() * params.presence_penalty

    return penalise


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_draws_have_the_probabilities_of_transformers(params: SamplingParams) -> None:
    """χ² test against the probabilities of transformers, at a significance of 1 in 10,000, for a whole batch."""
    scores, draws = logits(1, 11, scale=1.5), 1500
    tokens = sample_tokens(np.repeat(scores, draws, axis=0), [sampler(params, seed) for seed in range(draws)])
    counts = np.bincount(tokens, minlength=VOCABULARY)
    expected = reference(scores[0], params) * draws
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    pairs = [*zip(counts[common], expected[common], strict=True), (counts[~common].sum(), expected[~common].sum())]
    value = sum((got - wanted) ** 2 / wanted for got, wanted in pairs if wanted > 0)
    freedom = max(1, common.sum())
    assert value < freedom + 3.72 * np.sqrt(2 * freedom) + 14


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_greedy_is_the_likeliest_of_transformers(params: SamplingParams) -> None:
    for seed in range(5):
        scores = logits(1, seed)
        greedy = dataclasses.replace(params, temperature=0)
        unfiltered = dataclasses.replace(params, temperature=1.0, top_k=0, top_p=1, min_p=0)
        assert sample_tokens(scores, [sampler(greedy)])[0] == reference(scores[0], unfiltered).argmax()


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_scores_have_the_probabilities_of_transformers(params: SamplingParams) -> None:
    unfiltered = dataclasses.replace(params, temperature=1.0, top_k=0, top_p=1, min_p=0)
    scores = logits(1, 11, scale=1.5)
    wanted = reference(scores[0], unfiltered)
    adjust(scores, [sampler(unfiltered)])
    np.testing.assert_allclose(torch.softmax(torch.tensor(scores[0]).double(), -1).numpy(), wanted, rtol=1e-4)


def test_a_nucleus_that_has_its_limit_exactly_is_full() -> None:
    weights = np.array([2, 1, 1], np.float32)
    assert keep_nucleus(weights, 0, 2.0)
    assert not keep_nucleus(weights, 1, 2.0)
    np.testing.assert_array_equal(weights, [2, 0, 0])


@given(seed=st.integers(0, 99), vocabulary=st.integers(1, 2000), top_k=st.integers(1, 2000),
       top_p=st.floats(0.01, 0.999), scale=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
       draw=st.floats(0, 1, exclude_max=True))  # fmt: skip
def test_limits_equal_those_of_a_full_sort(
    seed: int, vocabulary: int, top_k: int, top_p: float, scale: float, draw: float
) -> None:
    random = np.random.default_rng(seed)
    # Halves, so that there are ties.
    scores = np.round(random.normal(size=vocabulary) * scale * 2).astype(np.float32) / 2
    top_k = min(top_k, vocabulary)
    np.testing.assert_array_equal(_most_likely(scores, top_k), np.flatnonzero(scores >= np.sort(scores)[-top_k]))

    weights = np.zeros(-(-vocabulary // _BLOCK) * _BLOCK, np.float32)
    weights[:vocabulary] = np.exp(scores - scores.max())
    shares = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    order = np.argsort(-shares, kind="stable")
    before = np.cumsum(shares[order]) - shares[order]
    for index in random.choice(vocabulary, 5):
        rest = weights.copy()
        kept = keep_nucleus(rest, int(index), top_p * float(weights.sum(dtype=np.float64)))
        rank = int(np.flatnonzero(order == index)[0])
        assert kept or before[rank] > top_p - 1e-5
        assert not kept or rank == 0 or before[rank] < top_p + 1e-5
        left = np.flatnonzero(weights) if kept else np.sort(order[:rank])
        np.testing.assert_array_equal(np.flatnonzero(rest), left[weights[left] > 0])

    (chosen,) = select(weights[None], _blocks(weights[None]), np.array([draw]))
    sums = np.cumsum(shares)
    assert weights[chosen] > 0
    assert sums[chosen] - shares[chosen] - 1e-5 <= draw <= sums[chosen] + 1e-5


@given(st.lists(st.sampled_from([*SETTINGS, GREEDY, SamplingParams(temperature=0, repetition_penalty=1.3)]),
                min_size=1, max_size=6), st.integers(0, 5))  # fmt: skip
def test_tokens_do_not_depend_on_other_rows(settings: list[SamplingParams], row: int) -> None:
    row %= len(settings)
    mine = [sampler(each, number) for number, each in enumerate(settings)]
    alone = sampler(settings[row], row)
    for step in range(4):
        rows = logits(len(settings), step)
        before = rows.copy()
        together = sample_tokens(rows, mine)
        assert sample_tokens(rows[row : row + 1], [alone])[0] == together[row]
        np.testing.assert_array_equal(rows, before)


def test_generated_tokens_are_penalised() -> None:
    scores = np.zeros((1, VOCABULARY), np.float32)
    scores[0, [40, 41]] = 3.0, 2.9
    for penalty in ({"repetition_penalty": 2.0}, {"presence_penalty": 0.2}, {"frequency_penalty": 0.2}):
        one = Sampler(SamplingParams(temperature=0, **penalty), PROMPT)
        assert [int(sample_tokens(scores, [one])[0]) for _ in range(2)] == [40, 41]
    many = Sampler(SamplingParams(temperature=0, frequency_penalty=0.001), PROMPT)
    rows = logits(1, 4)
    tokens = [int(sample_tokens(rows, [many])[0]) for _ in range(300)]
    assert many.history is not None
    assert dict(zip(many.history.ids.tolist(), many.history.counts.tolist(), strict=True)) == {
        token: tokens.count(token) for token in tokens
    }


def test_end_tokens_wait_for_the_least_number_of_tokens() -> None:
    scores = np.zeros((1, VOCABULARY), np.float32)
    scores[0, [8, 40]] = 3.0, 2.9
    one = Sampler(SamplingParams(temperature=0, min_tokens=3), PROMPT, ENDING)
    assert [int(sample_tokens(scores, [one])[0]) for _ in range(4)] == [40, 40, 40, 8]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.2, top_p=0.8, seed=1),
        SamplingParams(temperature=0.9, top_k=9, repetition_penalty=1.4, min_tokens=2),
        SamplingParams(temperature=1.0, frequency_penalty=0.5, logit_bias=((3, 2.0),), min_p=0.01),
    ],
)
def test_a_copy_for_drafts_selects_the_tokens_to_come(params: SamplingParams) -> None:
    """And leaves the sampler, its history and its constraint alone."""

    class Counting:
        problem = None
        tokens = 0

        def allowed(self) -> np.ndarray:
            return np.ones(50, np.bool_)

        def advance(self, token: int) -> None:
            self.tokens += 1

    logits, constraint = np.random.default_rng(0).normal(size=(12, 50)).astype(np.float32), Counting()
    sampler = Sampler(params, np.array([1, 2, 1]), (7,), constraint)
    sample_tokens(logits[:1], [sampler])
    drafted = [int(sample_tokens(row[None], [copy])[0]) for copy in [sampler.for_drafts()] for row in logits[1:]]
    assert constraint.tokens == 1
    assert [int(sample_tokens(row[None], [sampler])[0]) for row in logits[1:]] == drafted
    assert constraint.tokens == 12


def test_sampling_repeats_with_a_seed_only() -> None:
    rows = logits(1, 2, scale=0.1)

    def tokens(seed: int | None) -> list[int]:
        one = Sampler(SamplingParams(seed=seed, top_p=0.9), PROMPT)
        return [int(sample_tokens(rows, [one])[0]) for _ in range(20)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)
    assert tokens(None) != tokens(None)


class Allowed:
    """A constraint that always allows the same tokens."""

    def __init__(self, *tokens: int) -> None:
        self._mask = np.isin(np.arange(VOCABULARY), tokens)
        self.advanced: list[int] = []

    def allowed(self) -> np.ndarray:
        return self._mask

    def advance(self, token: int) -> None:
        self.advanced.append(token)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=3, top_p=0.5)], ids=str)
def test_a_constraint_allows_its_tokens_only(params: SamplingParams) -> None:
    rows = logits(3, 1)
    constraint = Allowed(17, 120)
    samplers = [Sampler(params, PROMPT), Sampler(params, PROMPT, constraint=constraint),
                Sampler(params, PROMPT, constraint=Allowed())]  # fmt: skip
    for _ in range(20):
        _, token, none = sample_tokens(rows, samplers).tolist()
        assert token in (17, 120)
        assert none == UNDEFINED
    assert len(constraint.advanced) == 20


@pytest.mark.parametrize("params", [GREEDY, *SETTINGS[::3]], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_undefined_logits_affect_their_row_only(params: SamplingParams, bad: float) -> None:
    rows = logits(3, 1)
    rows[1, 21] = bad
    tokens = sample_tokens(rows, [Sampler(params, PROMPT) for _ in rows])
    assert tokens[1] == UNDEFINED
    assert min(tokens[0], tokens[2]) >= 0
    assert sample_tokens(np.full((1, VOCABULARY), -np.inf, np.float32), [Sampler(params, PROMPT)])[0] < 0


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-4, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    rows = logits(1, 3)
    token = sample_tokens(rows, [Sampler(SamplingParams(temperature, seed=1), PROMPT)])[0]
    assert 0 <= token < VOCABULARY
    if temperature < 1e-3:
        assert token == rows.argmax()


def test_log_probabilities_equal_those_of_torch() -> None:
    rows, tokens, tops = logits(4, 6), np.array([1, 44, 3, 299]), [0, 1, 5, VOCABULARY]
    wanted = torch.log_softmax(torch.from_numpy(rows), -1)
    for row, found in enumerate(token_logprobs(rows, tokens, tops)):
        assert found.logprob == pytest.approx(wanted[row, tokens[row]].item(), abs=1e-5)
        likely = torch.topk(wanted[row], tops[row])
        assert found.top_ids.tolist() == likely.indices.tolist()
        np.testing.assert_allclose(found.top, likely.values, atol=1e-5)
