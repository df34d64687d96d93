"""What a decoder needs of memory besides keys and values, and passes where memory is short."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import VOCABULARY, tiny_config, tiny_model, tiny_runner
from tidal.errors import InvalidArgument
from tidal.flover.architectures import form_of
from tidal.flover.form import DecoderForm
from tidal.flover.memory.available import available_bytes
from tidal.flover.memory.buffers import SlotLayout, buffer_bytes, slot_layout
from tidal.flover.memory.plan import MemoryPlan, in_parts, plan_memory, slots_within
from tidal.flover.models.conversion import convert
from tidal.flover.runner import FloverRunner

FORM = form_of(tiny_config("llama"))


def plan(form: DecoderForm = FORM, available: int = 1 << 30, graphs: int = 0, limit: int | None = None) -> MemoryPlan:
    half = torch.bfloat16
    return plan_memory(
        form, slots=32, max_length=128, layout=layout(form, 128, half, gpu=graphs > 0), cached=half, computed=half,
        graphs=graphs, available=available, limit=limit,
    )  # fmt: skip


def layout(form: DecoderForm, max_length: int, dtype: torch.dtype, *, gpu: bool = False) -> SlotLayout:
    return slot_layout(form, max_length, dtype, torch.device("cuda" if gpu else "cpu"))


def test_everything_is_counted() -> None:
    large = FORM.model_copy(update={"vocabulary": 128_000})
    found = plan(large, available=10 << 30, graphs=100)
    assert found.keys_and_values == buffer_bytes(FORM, 32, 128, torch.bfloat16)
    assert found.logits >= 32 * 128_000 * 4
    assert found.graphs > 0
    assert found.reserve == 10 * (1 << 30) // 20
    parts = (
        *(found.keys_and_values, found.moving, found.logits, found.draft_logits),
        *(found.activations, found.graphs, found.reserve),
    )
    assert found.bytes == sum(parts)
    assert all(parts)


@pytest.mark.parametrize(
    ("vocabulary", "slots", "computed", "rows"),
    [
        (32_000, 32, torch.float32, 256),
        (128_000, 32, torch.float32, 131),
        (128_000, 32, torch.bfloat16, 87),
        (262_144, 32, torch.float32, 64),
        (128_000, 2, torch.float32, 30),
    ],
)
def test_logits_of_drafts_are_bounded(vocabulary: int, slots: int, computed: torch.dtype, rows: int) -> None:
    large = FORM.model_copy(update={"vocabulary": vocabulary})
    sizes: Any = {"max_length": 128, "cached": computed, "computed": computed, "graphs": 0}
    sizes["layout"] = layout(large, 128, computed)
    found = plan_memory(large, slots=slots, available=10 << 30, **sizes)
    assert found.draft_rows == rows
    assert found.draft_logits == rows * vocabulary * (4 if computed == torch.float32 else 6) <= 64 << 20
    # Where memory is short, there are fewer of them, rather than no server.
    without = found.bytes - found.reserve - found.draft_logits - found.keys_and_values + found.least
    for left in (0, found.draft_logits // 3, found.draft_logits):
        available = int((without + left) / 0.95) + 1
        short = plan_memory(large, slots=slots, available=available, **sizes)
        short.check(available)
        assert short.draft_rows == pytest.approx(rows * left / found.draft_logits, abs=1)
    with pytest.raises(InvalidArgument, match="are available: lower max_"):
        plan_memory(large, slots=slots, available=without, **sizes).check(without)


def test_a_pass_with_the_most_drafts_has_no_more_logits_than_planned() -> None:
    model = tiny_model("llama", vocab_size=128_000)
    runner = tiny_runner(model, slots=20)
    found = plan_memory(
        runner.form, slots=20, max_length=runner.max_length,
        layout=layout(runner.form, runner.max_length, torch.float32), cached=torch.float32, computed=torch.float32,
        graphs=0, available=10 << 30,
    )  # fmt: skip
    assert runner.draft_rows == found.draft_rows == 131
    drafted = np.array([runner.draft_rows // 20 + (slot < runner.draft_rows % 20) for slot in range(20)])
    slots = np.repeat(np.arange(20), 1 + drafted)
    positions = np.concatenate([np.arange(1 + count) for count in drafted])
    logits, _ = runner.mixed(slots, np.zeros(len(slots), np.int64), positions, ())
    assert len(logits) == 20 + runner.draft_rows
    assert logits.nbytes <= found.draft_logits + 20 * 128_000 * 4


def test_a_gpu_keeps_a_least_reserve() -> None:
    assert plan(available=1 << 30, graphs=1).reserve == 256 << 20


def test_slots_that_leave_no_memory_for_passes_are_refused() -> None:
    model = tiny_model("llama")
    weights = convert(model.state_dict(), FORM, tied=model.config.tie_word_embeddings)

    def open_with(available: int) -> FloverRunner:
        return FloverRunner(FORM, weights, slots=4, max_length=64, available=available)

    open_with(available_bytes(torch.device("cpu")))
    # As much as keys and values take, which is all that was counted once.
    with pytest.raises(
        InvalidArgument, match=r"4 slots of 64 tokens, one of them full, take .*keys and values .*logits .*reserve"
    ):
        open_with(buffer_bytes(FORM, 4, 64, torch.float32))


def test_slots_share_what_is_free() -> None:
    """Less than all slots take when they are full is a budget, and no reason to refuse the model, on a CPU."""
    whole = plan()
    one = layout(FORM, 128, torch.bfloat16).pages.bytes(128)
    assert (whole.keys_and_values, whole.least) == (32 * one, one)
    for left in (one, 5 * one + 1, 31 * one):
        available = int((whole.fixed - whole.reserve + whole.logits + left) / 0.95) + 1
        found = plan(available=available)
        found.check(available)
        assert found.keys_and_values + found.draft_logits == pytest.approx(left, abs=found.draft_logits / 128 + 2)
        assert found.keys_and_values >= one
    found = plan(available=int((whole.fixed - whole.reserve + whole.logits + one) / 0.95) - 10)
    with pytest.raises(InvalidArgument, match="32 slots of 128 tokens, one of them full, take"):
        found.check(found.bytes - 1)


def test_a_limit_is_a_budget() -> None:
    one = layout(FORM, 128, torch.bfloat16).pages.bytes(128)
    assert plan(limit=3 * one + 5).keys_and_values == 3 * one + 5
    assert plan(limit=100 * one).keys_and_values == 32 * one
    cpu, gpu = (torch.device(each) for each in ("cpu", "cuda"))
    sizes = layout(FORM, 128, torch.bfloat16)
    assert slots_within(3 * one, sizes, 32, 128, cpu) == slots_within(None, sizes, 32, 128, gpu) == 32
    assert slots_within(3 * one + 5, sizes, 32, 128, gpu) == 3
    with pytest.raises(InvalidArgument, match=r"kv_cache_mb is [\d.]+; a sequence of 128 tokens, .* takes"):
        slots_within(one - 1, sizes, 32, 128, cpu)


def test_the_advice_fits() -> None:
    whole = plan(graphs=1)
    available = whole.bytes - whole.reserve - whole.draft_logits - whole.keys_and_values // 2 + (256 << 20)
    found = plan(available=available, graphs=1)
    with pytest.raises(InvalidArgument, match=r"lower max_concurrency to (\d+)") as refused:
        found.check(available)
    advised = int(str(refused.value).split("lower max_concurrency to ")[1].split(",")[0])
    assert 0 < advised < 32
    share = advised / 32
    smaller = dataclasses.replace(
        found, slots=advised, keys_and_values=int(found.keys_and_values * share), logits=int(found.logits * share)
    )
    smaller.check(available)
    found.check(found.bytes)


def test_a_pass_that_lacks_memory_runs_in_parts() -> None:
    ranges = []

    def run(begin: int, end: int) -> list[int]:
        if end - begin > 3:
            raise torch.OutOfMemoryError("no memory")
        ranges.append((begin, end))
        return list(range(begin, end))

    assert [row for part in in_parts(run, 2, 13) for row in part] == list(range(2, 13))
    assert all(end - begin <= 3 for begin, end in ranges)

    def none(begin: int, end: int) -> None:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        in_parts(none, 0, 4)


@pytest.mark.parametrize("rows", [1, 3])
def test_streams_go_on_where_memory_is_short(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of more than `rows` rows lacks memory: answers are the same, and no stream ends."""
    model, draw = tiny_model("gpt2"), np.random.default_rng(0)
    short, plain = (tiny_runner(model, slots=7) for _ in range(2))
    limit(short._model, rows, monkeypatch)
    for slot in range(7):
        ids = draw.integers(0, VOCABULARY, 9)
        torch.testing.assert_close(short.prefill(slot, ids, 0), plain.prefill(slot, ids, 0), rtol=1e-4, atol=1e-4)
    for step in range(4):
        ids, positions = draw.integers(0, VOCABULARY, 6), np.full(6, 9 + step)
        first, second = short.decode(1, 7, ids, positions), plain.decode(1, 7, ids, positions)
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def limit(model: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = model.prefill, model.decode

    def limited_prefill(slot: int, ids: torch.Tensor, *more: Any, **options: Any) -> Any:
        if len(ids) > rows:
            raise torch.OutOfMemoryError("no memory")
        return prefill(slot, ids, *more, **options)

    def limited_decode(begin: int, end: int, *more: Any) -> Any:
        if end - begin > rows:
            raise torch.OutOfMemoryError("no memory")
        return decode(begin, end, *more)

    monkeypatch.setattr(model, "prefill", limited_prefill)
    monkeypatch.setattr(model, "decode", limited_decode)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch detects no GPU")
def test_a_decoder_on_a_gpu_takes_no_more_than_its_plan() -> None:
    from benchmarks.gpu.decoders import GPT2, random_weights

    device = torch.device("cuda")
    weights = random_weights(GPT2, device, torch.bfloat16)
    free = available_bytes(device)
    before = torch.cuda.memory_allocated(device)
    runner = FloverRunner(GPT2, weights, slots=32, max_length=1024, available=free)
    runner.warm_up()
    runner.prefill(0, np.zeros(512, np.int64), 0)
    runner.prefill(0, np.zeros(500, np.int64), 512)
    found = plan_memory(
        GPT2, slots=32, max_length=1024, layout=layout(GPT2, 1024, torch.bfloat16, gpu=True), cached=torch.bfloat16,
        computed=torch.bfloat16, graphs=100, available=free,
    )  # fmt: skip
    assert torch.cuda.max_memory_allocated(device) - before <= found.bytes - found.reserve
