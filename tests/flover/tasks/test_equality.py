"""Generation with several tasks in the same steps, compared with peft's own models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import FAMILIES, LLAMA_LIKE, MIXTURES, VOCABULARY, tiny_model, tiny_runner
from tests.flover.generating import generate_together, generated_by_transformers, random_sequences
from tests.flover.tasks.adapters import adapter, peft_model
from tests.flover.tasks.conftest import SHAPES
from tidal.flover.models import linear
from tidal.flover.runner import FloverRunner

Saved = Callable[[str, str], Path]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_tokens_equal_those_of_peft(saved: Saved, family: str) -> None:
    """Random arrivals, lengths and cancellations, with three tasks and the base; slots move before every step."""
    models = {name: peft_model(saved(family, name), family, merged=name != "usual") for name in SHAPES}
    adapters = {name: adapter(saved(family, name), family) for name in SHAPES}
    base, draw = tiny_model(family), np.random.default_rng(1)
    sequences = random_sequences(draw, 24, VOCABULARY)
    names = [None if each == 3 else list(SHAPES)[each] for each in draw.integers(0, 4, len(sequences))]
    for each, name in zip(sequences, names, strict=True):
        each.task = None if name is None else adapters[name]
    generate_together(tiny_runner(base, slots=6), sequences, draw)
    for each, name in zip(sequences, names, strict=True):
        assert each.stays < 0 or len(each.tokens) == each.wanted
        if each.tokens:
            model = base if name is None else models[name]
            assert each.tokens == generated_by_transformers(model, each.prompt, len(each.tokens))


def compare(runner: FloverRunner, folder: Path, family: str) -> None:
    """Compare a prompt in two chunks, and steps beside rows without a task, with peft's merged model."""
    ids, task = np.random.default_rng(0).integers(0, VOCABULARY, 60), adapter(folder, family)
    with torch.no_grad():
        wanted = peft_model(folder, family, merged=True)(torch.from_numpy(ids)[None]).logits[0]
    runner.prefill(1, ids[:30], 0, last=False, task=task)
    found = runner.prefill(1, ids[30:50], 30, task=task)
    assert found is not None
    torch.testing.assert_close(found, wanted[49], rtol=1e-4, atol=1e-4)
    for position in range(50, 60):
        tokens, positions = np.array([7, ids[position], 8]), np.array([position - 50, position, 3])
        logits = runner.decode(0, 3, tokens, positions, [None, task, None])
        torch.testing.assert_close(logits[1], wanted[position], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [*FAMILIES, *LLAMA_LIKE, *MIXTURES])
def test_logits_equal_those_of_the_merged_model(saved: Saved, family: str) -> None:
    compare(tiny_runner(tiny_model(family), slots=3), saved(family, "usual"), family)


@pytest.mark.parametrize("fallback", ["onednn", "torch"])
def test_logits_without_native_kernels_equal_those_of_the_merged_model(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, fallback: str
) -> None:
    def without(*_: Any) -> None:
        return None

    for module in ("models.linear", "models.attention", "memory.buffers", "tasks.low_rank_update"):
        monkeypatch.setattr(f"tidal.flover.{module}.usable", without)
    if fallback == "torch":
        monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    runner: Any = tiny_runner(tiny_model("gpt2"), slots=3)
    assert isinstance(runner._model._layers[0].up, linear._Packed if fallback == "onednn" else linear._Plain)
    compare(runner, saved("gpt2", "usual"), "gpt2")
