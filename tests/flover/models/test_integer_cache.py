"""Decoders with keys and values of 8 bits, compared with attention in torch to keys and values rounded alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from testing.decoders import POSITIONS, VOCABULARY, tiny_model, tiny_runner
from tests.flover.models.test_passes import layer_by_layer
from tests.flover.service.running import FakePrompt, running
from tidal.flover.memory.slots import SlotCopy, SlotMove
from tidal.flover.models.attention import TorchAttention
from tidal.flover.runner import PrefillInput

FAMILIES = ("gpt2", "llama", "gemma2")


pytestmark = pytest.mark.usefixtures("native_library")


class Rounding(TorchAttention):
    """Attention to keys and values that are written as integers times the scale of their token and head."""

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        queries, new = super()._split(qkv)
        scales = (new.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-30)
        return queries, (new / scales).round() * scales


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_keys_and_values_that_are_rounded(family: str) -> None:
    model, ids = tiny_model(family), np.random.default_rng(0).integers(0, VOCABULARY, 90)
    runner, other = tiny_runner(model, slots=3, kv_cache_dtype="int8"), tiny_runner(model, slots=3)
    assert (runner._buffers.layers[0].dtype, other._buffers.layers[0].dtype) == (torch.int8, torch.float32)
    assert runner.memory_bytes < 0.5 * other.memory_bytes
    other._model.native_pass = None
    other._model._attention = Rounding(other.form, other._buffers)
    with torch.no_grad():
        exact = model(torch.from_numpy(ids)[None]).logits[0]
    changes, errors = [], []
    for each in (runner, other):
        each.prefill(1, ids[:50], 0, last=False)
    found, wanted = (each.prefill(1, ids[50:80], 50) for each in (runner, other))
    for position in range(80, 90):
        assert found is not None
        assert wanted is not None
        errors.append((found - wanted).abs())
        changes.append((found - exact[position - 1]).abs())
        step = ids[position : position + 1], np.array([position])
        found, wanted = (each.decode(1, 2, *step)[0] for each in (runner, other))
    # Numbers next to the middle of two integers may be rounded to either.
    assert 4 * float(torch.cat(errors).mean()) < float(torch.cat(changes).mean()) < 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_of_any_kind_are_the_same(family: str) -> None:
    """In one call or layer by layer, in one chunk or several, together with others, moved, and from a copied prefix."""
    model, draw = tiny_model(family), np.random.default_rng(1)
    whole, parts, layers = (tiny_runner(model, slots=4, kv_cache_dtype="int8") for _ in range(3))
    ids = draw.integers(0, VOCABULARY, 100)
    wanted = whole.prefill(0, ids[:70], 0)
    close = {"rtol": 1e-3, "atol": 2e-2}
    with torch.inference_mode():
        found = layers._model.prefill(0, torch.from_numpy(ids[:70]), 0, last=True, lora=layer_by_layer)
    torch.testing.assert_close(found, wanted, **close)
    parts.prefill(2, ids[:30], 0, last=False)
    parts.prefill(2, ids[30:61], 30, last=False)
    parts.copy_slots([SlotCopy(2, 1, 0, 61)])
    parts.move_slots([SlotMove(2, 3), SlotMove(1, 3, exchange=True)], [0, 61, 61, 0])
    torch.testing.assert_close(parts.prefill(1, ids[61:70], 61), wanted, **close)
    chunk = PrefillInput(0, ids[:20], 0, last=True)
    rows = np.arange(70, 75)  # a token and four drafted ones
    stepped, ended = parts.mixed(np.full(5, 1), ids[rows], rows, [chunk])
    for row, position in enumerate(rows.tolist()):
        step = whole.decode(0, 1, ids[position : position + 1], np.array([position]))
        torch.testing.assert_close(stepped[row], step[0], **close)
    torch.testing.assert_close(ended[0], whole.prefill(1, ids[:20], 0), **close)


def test_drafts_and_prefixes_do_not_change_texts(tmp_path: Path) -> None:
    prompts = [[5, 6, 7] * 6, [9] * 20, list(range(20, 60)), [5, 6, 7] * 6 + [3]]
    found = []
    for speculates in (False, True):
        (folder := tmp_path / str(speculates)).mkdir()
        runner = tiny_runner(tiny_model("llama"), slots=2, kv_cache_dtype="int8")
        options = {"speculates": speculates, "reuse_prefixes": speculates, "max_length": POSITIONS}
        with running(folder, runner, **options) as service:
            asked = [FakePrompt(prompt, max_tokens=40) for prompt in prompts]
            for request in asked:
                service.ask(request)
                request.tokens()
            found.append([request.tokens() for request in asked])
    assert found[0] == found[1]


def test_without_the_library_they_are_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal.flover.native.library.library", lambda: None)
    runner = tiny_runner(tiny_model("llama"), kv_cache_dtype="int8")
    assert runner._buffers.layers[0].dtype == torch.float32
