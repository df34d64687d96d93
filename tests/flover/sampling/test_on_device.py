"""Sampling where the logits are: the same distributions as on the host, and only token ids leave the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.flover.service.running import FakePrompt, running
from tidal.flover.engine import next_tokens as module
from tidal.flover.engine.next_tokens import next_tokens, sample_on_device
from tidal.flover.sampling import UNDEFINED, Sampler, SamplingParams, sample_tokens

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch detects no GPU"),
        ],
    ),
]
NO_PROMPT = np.zeros(1, np.int64)


class Spread(Sampler):
    """A sampler whose random numbers are spread evenly over [0, 1)."""

    def __init__(self, params: SamplingParams, numbers: Iterator[float]) -> None:
        super().__init__(params, NO_PROMPT)
        self._numbers = numbers

    def draw(self) -> float:
        return next(self._numbers)


def sampler(seed: int = 0, **params: Any) -> Sampler:
    return Sampler(SamplingParams(seed=seed, **params), NO_PROMPT)


def kept(scores: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Probabilities by the definitions of temperature, top-k, top-p and min-p, in this order."""
    weights = np.exp((scores.astype(np.float64) - scores.max()) / params.temperature)
    if 0 < params.top_k < len(scores):
        weights[scores < np.sort(scores)[-params.top_k]] = 0
    if params.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        mass, inside = 0.0, list[int]()
        for token in order:
            if mass >= params.top_p * weights.sum() and inside:
                break
            inside.append(token)
            mass += weights[token]
        weights[np.setdiff1d(order, inside)] = 0
    weights[weights < params.min_p * weights.max()] = 0
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.8, "min_p": 0.05},
    ],
    ids=str,
)
def test_the_distribution_is_the_defined_one(params: dict[str, Any], device: str) -> None:
    scores = np.random.default_rng(3).normal(size=11).astype(np.float32)
    scores[4] = scores[7]  # equally likely tokens
    count = 4000
    numbers = iter((np.arange(count) + 0.5) / count)
    settings = SamplingParams(**params)
    samplers = [Spread(settings, numbers) for _ in range(count)]
    tokens = sample_on_device(torch.from_numpy(scores).repeat(count, 1).to(device), samplers)
    found = np.bincount(tokens, minlength=11) / count
    np.testing.assert_allclose(found, kept(scores, settings), atol=1.5 / count)


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_those_of_the_host_where_nothing_is_cut_out(device: str) -> None:
    """Rows with different settings in one call; equal seeds give equal tokens."""
    draw = np.random.default_rng(0)
    logits = draw.normal(scale=3, size=(60, 500)).astype(np.float32)
    options: list[dict[str, Any]] = [
        {"temperature": 0}, {}, {"top_k": 5}, {"temperature": 0.3}, {"top_k": 1}, {"min_p": 0.1}
    ]  # fmt: skip
    mine, theirs = ([sampler(row, **options[row % len(options)]) for row in range(60)] for _ in range(2))
    for _ in range(5):
        found = sample_on_device(torch.from_numpy(logits).to(device), mine)
        assert found.tolist() == sample_tokens(logits, theirs).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_defined_logits_harm_no_other(device: str) -> None:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    logits[0], logits[1, 3], logits[2] = torch.nan, torch.nan, -torch.inf
    logits[3, 1:] = -torch.inf
    for options in ({"temperature": 0}, {}, {"top_p": 0.5}, {"top_k": 4}):
        found = sample_on_device(logits.to(device), [sampler(**options) for _ in range(6)])
        assert found[:3].tolist() == [UNDEFINED] * 3
        assert found[3] == 0
        assert (found[4:] >= 0).all()


def test_only_rows_that_need_it_are_copied_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "on_host", lambda _logits: False)
    copied: list[list[int]] = []
    to_host = module.rows_on_host

    def rows_on_host(logits: torch.Tensor, rows: list[int]) -> Any:
        copied.append(list(rows))
        return to_host(logits, rows)

    monkeypatch.setattr(module, "rows_on_host", rows_on_host)
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    banned = int(logits[1].argmax())
    samplers = [
        sampler(temperature=0), sampler(temperature=0, logit_bias=((banned, -100.0),)), sampler(),
        sampler(temperature=0, repetition_penalty=1.5),
    ]  # fmt: skip
    tokens = next_tokens(logits, samplers)
    assert copied == [[1, 3]]
    assert tokens[0] == int(logits[0].argmax())
    assert tokens[1] == int(logits[1].topk(2).indices[1])
    next_tokens(logits[:1], samplers[:1])
    assert copied == [[1, 3]]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 3}, {"num_beams": 3}, {"logprobs": True, "top_logprobs": 2}], ids=str
)
def test_a_service_generates_the_same_on_a_device(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for number, host in enumerate((True, False)):
        monkeypatch.setattr(module, "on_host", lambda _logits, host=host: host)
        (tmp_path / str(number)).mkdir()
        with running(tmp_path / str(number)) as service:
            requests = [FakePrompt(text, max_tokens=12, **options) for text in ("one", "another", "x")]
            service.ask(*requests)
            answers.append([request.tokens() for request in requests])
    assert answers[0] == answers[1]
    assert all(answers[0])
