"""Passes in one native call compared with the same passes layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from testing.decoders import FAMILIES, VOCABULARY, tiny_model, tiny_runner
from tests.flover.native.levels import levels
from tidal.errors import Internal
from tidal.flover.form import Projection
from tidal.flover.native.library import choose_kernels
from tidal.flover.runner import PrefillInput

pytestmark = pytest.mark.usefixtures("native_library")


def layer_by_layer(
    layer: int, projection: Projection, rows: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor | None:
    """A LoRA update of zero: passes with an update run layer by layer."""
    return residual


@pytest.mark.parametrize("level", ["auto", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_slots_are_the_same(family: str, dtype: torch.dtype, level: str) -> None:
    choose_kernels(level)
    model, draw = tiny_model(family), torch.Generator().manual_seed(0)
    whole, apart = (tiny_runner(model, slots=5, dtype=dtype)._model for _ in range(2))
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.1}
    with torch.inference_mode():
        for slot, count in ((1, 30), (2, 1), (3, 64)):
            ids = torch.randint(VOCABULARY, (count,), generator=draw)
            assert whole.prefill(slot, ids, 0, last=False) is None
            apart.prefill(slot, ids, 0, last=False, lora=layer_by_layer)
            more = torch.randint(VOCABULARY, (3,), generator=draw)
            found = whole.prefill(slot, more, count, last=True)
            torch.testing.assert_close(found, apart.prefill(slot, more, count, last=True, lora=layer_by_layer), **close)
        ids = torch.randint(VOCABULARY, (3,), generator=draw)
        positions = torch.tensor([33, 4, 67])
        found = whole.decode(1, 4, ids, positions, 128)
        torch.testing.assert_close(found, apart.decode(1, 4, ids, positions, 128, layer_by_layer), **close)
        assert found.shape == (3, VOCABULARY)
    for mine, theirs in zip(whole._attention._buffers.layers, apart._attention._buffers.layers, strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(mine[1:4], theirs[1:4], **close)


@pytest.mark.parametrize("inner", [160, 150])
def test_joined_layers_have_the_same_logits_as_separate_ones(inner: int) -> None:
    model, draw = tiny_model("gpt2", n_inner=inner), torch.Generator().manual_seed(1)
    joined, apart = (tiny_runner(model, slots=2, dtype=torch.bfloat16)._model for _ in range(2))
    assert joined.native_pass is not None
    assert apart.native_pass is not None
    assert sum(each.joined for each in joined.native_pass._operations) == 2
    for each in apart.native_pass._operations:
        each.joined = 0
    for level in levels():
        choose_kernels(level)
        for count in (1, 20, 70):
            ids = torch.randint(VOCABULARY, (count,), generator=draw)
            found, wanted = (each.prefill(0, ids, 0, last=True) for each in (joined, apart))
            assert found is not None
            assert wanted is not None
            assert torch.equal(found, wanted)


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes the passes: the native library, or torch as on a GPU."""
    if request.param == "torch":
        monkeypatch.setattr("tidal.flover.native.library.library", lambda: None)
    return str(request.param)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_pass_equals_separate_passes(family: str, kernels: str) -> None:
    model, draw = tiny_model(family), np.random.default_rng(3)
    together, apart = (tiny_runner(model, slots=6) for _ in range(2))
    texts = [draw.integers(0, VOCABULARY, 60) for _ in range(6)]
    for runner in (together, apart):
        assert runner.runs_mixed is (kernels == "native")
        for slot, read in ((1, 30), (2, 5), (4, 7)):
            runner.prefill(slot, texts[slot][:read], 0, last=False)
    held = np.array([30, 5])
    tokens = np.array([texts[slot][read] for slot, read in ((1, 30), (2, 5))])
    chunks = [
        PrefillInput(4, texts[4][7:20], 7, True),
        PrefillInput(0, texts[0][:9], 0, False),
        PrefillInput(5, texts[5], 0, True),
    ]
    stepped, ended = together.mixed(np.array([1, 2]), tokens, held, chunks)
    torch.testing.assert_close(stepped, apart.decode(1, 3, tokens, held))
    firsts = [apart.prefill(slot, ids, start, last=last) for slot, ids, start, last in chunks]
    assert firsts[1] is None
    torch.testing.assert_close(ended, torch.stack([each for each in firsts if each is not None]))
    for mine, theirs in zip(together._buffers.layers, apart._buffers.layers, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_mixed_pass_of_slots_with_holes_between_them(kernels: str) -> None:
    model, draw = tiny_model("llama"), np.random.default_rng(4)
    together, apart = (tiny_runner(model, slots=6) for _ in range(2))
    slots, held = np.array([0, 2, 5]), np.array([9, 70, 3])
    for slot, count in zip(slots.tolist(), held.tolist(), strict=True):
        ids = draw.integers(0, VOCABULARY, count)
        for runner in (together, apart):
            runner.prefill(slot, ids, 0, last=False)
    tokens, chunk = draw.integers(0, VOCABULARY, 3), PrefillInput(3, draw.integers(0, VOCABULARY, 12), 0, True)
    stepped, ended = together.mixed(slots, tokens, held, [chunk])
    for row, slot in enumerate(slots.tolist()):
        alone = apart.decode(slot, slot + 1, tokens[row : row + 1], held[row : row + 1])
        torch.testing.assert_close(stepped[row], alone[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ended[0], apart.prefill(3, chunk.token_ids, 0), rtol=1e-4, atol=1e-4)


def test_a_mixed_pass_without_a_step_and_without_logits(kernels: str) -> None:
    together, apart = (tiny_runner(tiny_model("gpt2"), slots=3) for _ in range(2))
    none, ids = np.empty(0, np.int64), np.arange(20)
    stepped, ended = together.mixed(
        none, none, none, [PrefillInput(2, ids[:11], 0, False), PrefillInput(0, ids, 0, False)]
    )
    assert len(stepped) == len(ended) == 0
    for slot, read in ((2, 11), (0, 20)):
        apart.prefill(slot, ids[:read], 0, last=False)
    mine, theirs = (each.prefill(2, ids[11:], 11) for each in (together, apart))
    torch.testing.assert_close(mine, theirs)
    with pytest.raises(Internal, match="position"):
        together.mixed(none, none, none, [PrefillInput(1, ids, together.max_length - 19, False)])
