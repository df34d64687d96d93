"""Beam search compared with that of transformers, on the logits of the same models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import VOCABULARY, tiny_model
from tests.flover.generating import searched_by_transformers
from tidal.flover.beams import BeamSearch, BeamSettings

COUNT = 10
# Covers every pair of values.
SETTINGS = [
    BeamSettings(2, 1.0, False, 1.0),
    BeamSettings(3, 1.0, True, 1.3),
    BeamSettings(5, 1.0, "never", 1.0),
    BeamSettings(3, -0.7, False, 1.0),
    BeamSettings(5, -0.7, True, 1.0),
    BeamSettings(2, -0.7, "never", 1.3),
    BeamSettings(5, 2.5, False, 1.3),
    BeamSettings(2, 2.5, True, 1.0),
    BeamSettings(3, 2.5, "never", 1.0),
    BeamSettings(4, 0.0, False, 0.8),
]


def searched(model: Any, prompt: list[int], count: int, eos: tuple[int, ...], settings: BeamSettings) -> BeamSearch:
    """Run a search over a model that prefills every text again in each step."""
    search = BeamSearch(settings, prompt, count, eos, VOCABULARY)
    while not search.ended:
        texts = [prompt + tokens for tokens in search.tokens] if search.length else [prompt]
        with torch.no_grad():
            parents = search.advance(model(torch.tensor(texts)).logits[:, -1])
        assert len(parents) == settings.beams
        assert len({tuple(tokens) for tokens in search.tokens}) == settings.beams
    return search


def prompt_of(seed: int, length: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, length)]


def likely(model: Any, prompt: list[int]) -> list[int]:
    """Return the two likeliest tokens after a prompt: as end-of-text tokens they end many beams."""
    with torch.no_grad():
        found: list[int] = model(torch.tensor([prompt])).logits[0, -1].topk(2).indices.tolist()
    return found


def by_transformers(model: Any, prompt: list[int], eos: int | None, settings: BeamSettings) -> list[int]:
    return searched_by_transformers(
        model, prompt, COUNT, eos, num_beams=settings.beams, length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping, repetition_penalty=settings.repetition_penalty,
    )  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tokens_equal_those_of_transformers(settings: BeamSettings) -> None:
    for family, prompt in (("gpt2", prompt_of(3)), ("llama", prompt_of(4, 1))):
        model = tiny_model(family)
        for eos in (None, likely(model, prompt)[1]):
            found = searched(model, prompt, COUNT, () if eos is None else (eos,), settings)
            assert list(found.best.tokens) == by_transformers(model, prompt, eos, settings)


@pytest.mark.parametrize(("seed", "penalty"), [(14, 1.0), (18, 2.5)])
def test_early_stopping_is_that_of_transformers(seed: int, penalty: float) -> None:
    """With these prompts each setting of `early_stopping` yields a different text."""
    model, prompt, texts = tiny_model("gpt2"), prompt_of(seed), set()
    eos = likely(model, prompt)[0]
    for early_stopping in (False, True, "never"):
        settings = BeamSettings(2, penalty, early_stopping)  # type: ignore[arg-type]
        found = searched(model, prompt, COUNT, (eos,), settings).best.tokens
        assert list(found) == by_transformers(model, prompt, eos, settings)
        texts.add(found)
    assert len(texts) == 3


def test_undefined_logits_raise() -> None:
    for bad in (np.nan, np.inf):
        search = BeamSearch(BeamSettings(2), [1], 5, (), VOCABULARY)
        logits = torch.zeros((1, VOCABULARY))
        logits[0, 3] = bad
        with pytest.raises(ArithmeticError):
            search.advance(logits)
