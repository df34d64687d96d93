"""Mixtures of experts compared with a slow reference, row by row in float64, at every level of the kernels."""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from testing.decoders import MIXTURES, VOCABULARY, tiny_config, tiny_model, tiny_runner
from tests.flover.native.levels import TILINGS, levels
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm, Experts
from tidal.flover.manifest import FloverPrecision
from tidal.flover.memory.slots import SlotMove
from tidal.flover.models.experts import ExpertLayer
from tidal.flover.models.weights import Dense, ExpertWeights
from tidal.flover.native import library
from tidal.flover.native.tiling import Tiling
from tidal.flover.runner import PrefillInput
from tidal_builders.flover.converting import stored_as

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the library is compiled with g++"),
    pytest.mark.usefixtures("native_library"),
]

# Largest error relative to the largest output: of sums in float32, and of rows rounded to bfloat16 or to 8 bits.
_BOUNDS: dict[FloverPrecision, float] = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.03, "int4": 0.03}


def mixture_form(width: int, experts: Experts) -> DecoderForm:
    form = form_of(tiny_config("mixtral", num_hidden_layers=1))
    return form.model_copy(update={"width": width, "experts": experts})


def random_weights(form: DecoderForm, seed: int) -> ExpertWeights:
    assert form.experts is not None
    draw, widths = torch.Generator().manual_seed(seed), form.experts.widths

    def dense(outputs: int, inputs: int) -> Dense:
        return Dense(torch.randn(outputs, inputs, generator=draw) / inputs**0.5, None)

    return ExpertWeights(
        torch.randn(len(widths), form.width, generator=draw) / form.width**0.5,
        tuple(dense(2 * inner, form.width) for inner in widths),
        tuple(dense(form.width, inner) for inner in widths),
    )


def slow(experts: Experts, weights: ExpertWeights, rows: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The sum of each row's experts, and the least difference of scores that decided between two experts."""
    found, gap = torch.zeros_like(rows, dtype=torch.float64), float("inf")
    for number, row in enumerate(rows.double()):
        scores = weights.router.double() @ row
        order = sorted(range(experts.count), key=lambda each: -float(scores[each]))
        if experts.chosen < experts.count:
            gap = min(gap, float(scores[order[experts.chosen - 1]] - scores[order[experts.chosen]]))
        chosen = order[: experts.chosen]
        of = chosen if experts.normalised else order
        factors = {each: scores[each].exp() / sum(scores[other].exp() for other in of) for each in chosen}
        if experts.shared_inner is not None:
            factors[experts.count] = 1 / (1 + (-scores[experts.count]).exp())
        for expert, factor in factors.items():
            inner = len(weights.up[expert].floats()) // 2
            raised = weights.up[expert].floats().double() @ row
            gated = functional.silu(raised[:inner]) * raised[inner:]
            found[number] += factor * (weights.down[expert].floats().double() @ gated)
    return found, gap


def native(layer: ExpertLayer, rows: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """Output of the native library's operation."""
    loaded = library.library()
    assert loaded is not None
    operation, result = layer.operation(0, 2, 1), torch.empty_like(rows)
    buffers = (ctypes.c_void_p * 3)(*(each.data_ptr() for each in (rows, added, result)))
    loaded.tidal_pass(
        torch.get_num_threads(), 1, ctypes.byref(operation), len(rows), None, None, None, buffers,
        (ctypes.c_int32 * 3)(*[rows.shape[1]] * 3), None, 0,
    )  # fmt: skip
    return result


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 70),
    width=st.integers(1, 100),
    count=st.integers(1, 9),
    chosen=st.integers(1, 9),
    inner=st.integers(1, 70),
    normalised=st.booleans(),
    shared=st.sampled_from([None, 1, 50]),
    precision=st.sampled_from(list(_BOUNDS)),
    tiling=TILINGS,
    threads=st.integers(1, 2),
)
def test_experts_equal_a_slow_reference(
    seed: int, rows: int, width: int, count: int, chosen: int, inner: int, normalised: bool, shared: int | None,
    precision: FloverPrecision, tiling: Tiling, threads: int,
) -> None:  # fmt: skip
    experts = Experts(
        count=count, chosen=min(chosen, count), inner=inner, normalised=normalised, shared_inner=shared, layers=(0,)
    )
    form = mixture_form(width, experts)
    weights: ExpertWeights = stored_as(random_weights(form, seed), precision, 32)
    draw = torch.Generator().manual_seed(seed + 1)
    given_rows, added = torch.randn(rows, width, generator=draw), torch.randn(rows, width, generator=draw)
    wanted, gap = slow(experts, weights, given_rows)
    assume(gap > 1e-4)
    torch.set_num_threads(threads)
    layer = ExpertLayer(form, weights, tiling)
    bound = _BOUNDS[precision] * max(1.0, float(wanted.abs().max()))
    for level in levels():
        library.choose_kernels(level)
        assert (native(layer, given_rows, added) - added - wanted).abs().max() < bound
    assert (layer(given_rows) - wanted).abs().max() < bound


@pytest.mark.parametrize("precision", _BOUNDS)
def test_only_experts_that_a_row_chose_are_computed(precision: FloverPrecision) -> None:
    form = mixture_form(48, Experts(count=8, chosen=2, inner=40, normalised=True, shared_inner=24, layers=(0,)))
    weights = random_weights(form, 1)
    rows, added = torch.randn(2, 48, generator=torch.Generator().manual_seed(2)), torch.zeros(2, 48)
    used = set(ExpertLayer(form, weights).route(rows)[0].flatten().tolist())
    assert 8 in used
    assert len(used) <= 5

    def poisoned(parts: tuple[Dense, ...]) -> tuple[Dense, ...]:
        return tuple(each if n in used else Dense(each.weight * torch.nan, None) for n, each in enumerate(parts))  # type: ignore[operator]

    whole, other = (
        ExpertLayer(form, stored_as(each, precision, 32))
        for each in (weights, ExpertWeights(weights.router, poisoned(weights.up), poisoned(weights.down)))
    )
    library.choose_kernels("auto")
    assert torch.equal(native(whole, rows, added), native(other, rows, added))
    assert torch.equal(whole(rows), other(rows))


@pytest.mark.parametrize("precision", _BOUNDS)
def test_a_row_does_not_depend_on_the_rows_beside_it(precision: FloverPrecision) -> None:
    form = mixture_form(64, Experts(count=5, chosen=2, inner=96, normalised=False, shared_inner=40, layers=(0,)))
    tiling = Tiling(matrix_rows=1, integer_matrix_rows=1)
    layer = ExpertLayer(form, stored_as(random_weights(form, 3), precision, 32), tiling)
    draw = torch.Generator().manual_seed(4)
    rows, added = torch.randn(70, 64, generator=draw), torch.randn(70, 64, generator=draw)
    for level in levels():
        library.choose_kernels(level)
        together = native(layer, rows, added)
        for count in (1, 7, 33):
            alone = native(layer, rows[-count:].clone(), added[-count:].clone())
            assert torch.equal(alone, together[-count:]), (level, count)


def test_scores_that_are_not_numbers_stay_in_their_row() -> None:
    form = mixture_form(32, Experts(count=6, chosen=3, inner=16, normalised=True, layers=(0,)))
    layer = ExpertLayer(form, random_weights(form, 5))
    rows, added = torch.randn(4, 32), torch.zeros(4, 32)
    wanted = native(layer, rows, added)
    rows[1] = torch.nan
    found = native(layer, rows, added)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3]], wanted[[0, 2, 3]])


@pytest.mark.parametrize("family", MIXTURES)
def test_steps_beside_prompts_and_after_moves_have_the_logits_of_transformers(family: str) -> None:
    model, draw = tiny_model(family), np.random.default_rng(0)
    runner = tiny_runner(model, slots=5)
    texts = [draw.integers(0, VOCABULARY, length) for length in (3, 20, 70, 41)]
    with torch.no_grad():
        wanted = [model(torch.from_numpy(text)[None]).logits[0] for text in texts]
    for slot, text in enumerate(texts[:3]):
        runner.prefill(slot, text[:-2], 0)
    chunk = PrefillInput(3, texts[3], 0, True)
    slots, last = np.arange(3), np.array([len(text) - 2 for text in texts[:3]])
    stepped, prefilled = runner.mixed(slots, np.array([text[-2] for text in texts[:3]]), last, [chunk])
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(stepped, torch.stack([each[-2] for each in wanted[:3]]), **close)
    torch.testing.assert_close(prefilled[0], wanted[3][-1], **close)
    runner.move_slots([SlotMove(0, 4)], [len(texts[0]) - 1, 0, 0, 0, 0])
    found = runner.decode(4, 5, texts[0][-1:], last[:1] + 1)
    torch.testing.assert_close(found[0], wanted[0][-1], **close)
