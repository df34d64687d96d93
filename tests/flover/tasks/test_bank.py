"""Rows of different tasks in one projection: each row gets the update of its own task only."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testing.decoders import VOCABULARY, tiny_model, tiny_runner
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm, Projection
from tidal.flover.runner import FloverRunner
from tidal.flover.tasks.adapter import LoraAdapter, lora_adapter
from tidal.flover.tasks.bank import TaskBank
from tidal.flover.tasks.layers import layer_slices, projection_sizes
from tidal.tasks.low_rank import LowRankDelta

RANKS = (1, 3, 8, 13, 32, 32, 40)
CAPACITY = 4


@functools.cache
def form() -> DecoderForm:
    return form_of(tiny_model("llama").config)


@functools.cache
def adapters() -> tuple[LoraAdapter, ...]:
    """Return random adapters of these ranks, each on some of the linear layers; the values of the first overflow."""
    draw = np.random.default_rng(0)
    found = []
    for number, rank in enumerate(RANKS):
        deltas = {}
        for path, part in layer_slices(form()).items():
            if number and draw.random() < 0.3:
                continue
            down, up = draw.normal(size=(rank, part.inputs)), draw.normal(size=(part.outputs, rank))
            scale = 0.1 if number else 1e38
            factors = (np.asarray((each * scale).clip(-3e38, 3e38), np.float32) for each in (down, up))
            deltas[path] = LowRankDelta(*factors, 0.5)
        found.append(lora_adapter(deltas, layer_slices(form())))
    return tuple(found)


def dense(task: LoraAdapter, layer: int, projection: Projection) -> torch.Tensor:
    """Return the task's update as a matrix [outputs, inputs]."""
    inputs, outputs = projection_sizes(form())[projection]
    found = torch.zeros(outputs, inputs)
    for part in task.factors.get(projection, ()):
        if part.layer == layer:
            found[part.begin : part.begin + part.up.shape[1]] += torch.from_numpy(part.up.T @ part.down)
    return found


@contextmanager
def kernels(used: bool) -> Iterator[None]:
    """Use the native library, if it is built, or not."""
    with pytest.MonkeyPatch.context() as patch:
        if not used:
            patch.setattr("tidal.flover.tasks.low_rank_update.usable", lambda _device: None)
        yield


tasks_of_rows = st.lists(st.sampled_from((None, *range(1, len(RANKS)))), min_size=1, max_size=6)


@pytest.mark.parametrize("native", [True, False])
@settings(deadline=None, max_examples=40)
@given(passes=st.lists(tasks_of_rows, min_size=1, max_size=8))
def test_rows_get_their_own_tasks_update_after_any_other_tasks(native: bool, passes: list[list[int | None]]) -> None:
    """There are more tasks than the bank keeps, so tasks are evicted and their ranks reused."""
    with kernels(native):
        _check_against_dense(passes)


def _check_against_dense(passes: list[list[int | None]]) -> None:
    bank, draw = TaskBank(form(), CAPACITY, torch.float32, torch.device("cpu")), torch.Generator().manual_seed(0)
    for numbers in passes:
        tasks = [None if number is None else adapters()[number] for number in numbers]
        update = bank.update(tasks)
        assert (update is None) == (not any(tasks))
        if update is None:
            continue
        for projection, (inputs, outputs) in projection_sizes(form()).items():
            rows, residual = torch.randn(len(tasks), inputs, generator=draw), torch.randn(len(tasks), outputs)
            own = [torch.zeros(outputs) if task is None else dense(task, 1, projection) @ row
                   for task, row in zip(tasks, rows, strict=True)]  # fmt: skip
            wanted, kept = torch.stack(own), residual.clone()
            found = update(1, projection, rows)
            torch.testing.assert_close(torch.zeros_like(wanted) if found is None else found, wanted)
            torch.testing.assert_close(update(1, projection, rows, residual), wanted + residual)
            assert torch.equal(residual, kept)


def test_no_more_tasks_are_kept_than_allowed() -> None:
    bank = TaskBank(form(), CAPACITY, torch.float32, torch.device("cpu"))
    for task in adapters()[1:] * 3:
        bank.update([task])
    for factors in bank._factors.values():
        assert len(factors._ranks) <= CAPACITY
        largest = max(task.ranks.get(factors._projection, 0) for task in adapters())
        assert factors._down.shape[1] <= 4 * CAPACITY * largest


@functools.cache
def runner() -> FloverRunner:
    return tiny_runner(tiny_model("llama"), slots=4)


def logits(tasks: Sequence[LoraAdapter | None], draw: np.random.Generator, ids: np.ndarray) -> torch.Tensor:
    """Return the logits of the prompt in the first of four slots; the prompts in the others are random."""
    for slot, task in enumerate(tasks):
        prompt = ids if slot == 0 else draw.integers(0, VOCABULARY, 9)
        runner().prefill(slot, prompt[:9], 0, task=task)
    return runner().decode(0, 4, np.full(4, ids[9]), np.full(4, 9), tasks)[0]


@pytest.mark.parametrize("native", [True, False])
@settings(deadline=None, max_examples=25)
@given(numbers=st.lists(st.sampled_from((None, *range(len(RANKS)))), min_size=4, max_size=4), seed=st.integers(0, 99))
@example(numbers=[1, 0, None, 2], seed=0)
def test_logits_do_not_depend_on_the_tasks_of_other_rows(native: bool, numbers: list[int | None], seed: int) -> None:
    """Also if the logits of another row are NaN."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, VOCABULARY, 10)
    tasks = [None if number is None else adapters()[number] for number in numbers]
    with kernels(native):
        alone = logits([tasks[0], None, None, None], draw, ids)
        found = logits(tasks, draw, ids)
    if numbers[0] != 0:
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)


def test_a_pass_without_tasks_has_no_update() -> None:
    bank = TaskBank(form(), CAPACITY, torch.float32, torch.device("cpu"))
    bank.update([adapters()[2]])
    assert bank.update([None, None]) is None
    assert bank.update([]) is None
    only_values = LowRankDelta(np.ones((2, 32), np.float32), np.ones((16, 2), np.float32), 1.0)
    value = lora_adapter({"layers.0.self_attn.v_proj": only_values}, layer_slices(form()))
    update, rows = bank.update([value, None]), torch.ones(2, 32)
    assert update is not None
    assert update(0, "up", rows) is None
    assert update(0, "output", rows, rows) is rows
    found = update(0, "qkv", rows)
    assert found is not None
    assert not found[1].any()
    assert not found[0, :-16].any()
    assert (found[0, -16:] == 64).all()


@pytest.mark.parametrize("family", ["gpt2", "gptj", "gpt_neox", "llama", "qwen3"])
def test_layer_slices_cover_every_output_once(family: str) -> None:
    of_family = form_of(tiny_model(family).config)
    for projection, (inputs, outputs) in projection_sizes(of_family).items():
        for layer in range(of_family.layers):
            here = [
                each
                for each in layer_slices(of_family).values()
                if (each.layer, each.projection) == (layer, projection)
            ]
            covered = [output for each in here for output in range(each.begin, each.begin + each.outputs)]
            assert sorted(covered) == list(range(outputs))
            assert {each.inputs for each in here} == {inputs}
