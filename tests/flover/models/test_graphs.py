"""Captured decode steps: all buckets are captured at load, and answers and slots are those of uncaptured steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from testing.decoders import VOCABULARY, tiny_model, tiny_runner
from tidal.flover.models.graphs import attend_buckets, window_buckets
from tidal.flover.runner import FloverRunner

LENGTH = 160


class Recorder:
    """Stands in for CUDA: a replay computes the function again, between the same tensors."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        run()  # as a capture warms up, it writes to the slots

        def replay() -> None:
            self.replayed += 1
            run()

        return replay


def runners(slots: int) -> tuple[FloverRunner, FloverRunner, Recorder]:
    """Return a captured runner, an uncaptured one of the same model, and what was captured."""
    model = tiny_model("gpt2", n_positions=LENGTH)
    captured, plain = (tiny_runner(model, slots=slots, max_length=LENGTH) for _ in range(2))
    recorder = Recorder()
    captured.capture(recorder)
    return captured, plain, recorder


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5, 8, 12, 32, 64])
def test_each_window_is_in_a_bucket_that_is_not_much_larger(slots: int) -> None:
    buckets = window_buckets(slots)
    assert len(set(buckets)) == len(buckets)
    for begin in range(slots):
        for end in range(begin + 1, slots + 1):
            smallest = min(len(each) for each in buckets if each.begin <= begin and end <= each.end)
            assert smallest <= max(4, 4 * (end - begin))
    assert all(0 <= each.begin < each.end <= slots for each in buckets)


def test_buckets_of_attended_tokens_reach_the_end_of_a_slot() -> None:
    assert attend_buckets(1024) == (64, 128, 256, 512, 1024)
    assert attend_buckets(160) == (64, 128, 160)
    assert attend_buckets(20) == (20,)


def test_a_large_server_captures_few_graphs_all_at_load() -> None:
    """Exact windows would be 2,176 shapes with 64 slots, captured while requests wait."""
    assert len(window_buckets(64)) * len(attend_buckets(1024)) < 300


def test_no_step_is_captured_under_traffic() -> None:
    captured, _, recorder = runners(6)
    at_load, draw = recorder.captured, np.random.default_rng(0)
    steps = 0
    for begin in range(6):
        for end in range(begin + 1, 7):
            for longest in (0, 63, 64, LENGTH - 1):
                positions = draw.integers(0, longest + 1, end - begin)
                captured.decode(begin, end, draw.integers(0, VOCABULARY, end - begin), positions)
                steps += 1
    assert (recorder.captured, recorder.replayed) == (at_load, steps)


def test_answers_and_slots_are_those_of_uncaptured_steps() -> None:
    captured, plain, _ = runners(7)
    draw = np.random.default_rng(1)
    held = np.zeros(7, np.int64)
    for _ in range(60):
        if draw.random() < 0.4:
            slot, count = int(draw.integers(7)), int(draw.integers(1, 40))
            start = int(held[slot]) if held[slot] + count < LENGTH else 0
            ids = draw.integers(0, VOCABULARY, count)
            first, second = (each.prefill(slot, ids, start) for each in (captured, plain))
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
            held[slot] = start + count
        begin = int(draw.integers(7))
        end = int(draw.integers(begin + 1, 8))
        # A slot that is full is a hole at its first position, as after its end.
        held[begin:end][held[begin:end] >= LENGTH] = 0
        ids, positions = draw.integers(0, VOCABULARY, end - begin), held[begin:end].copy()
        first, second = (each.decode(begin, end, ids, positions) for each in (captured, plain))
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
        held[begin:end] += 1
        for mine, theirs in zip(captured._buffers.layers, plain._buffers.layers, strict=True):
            # The last position is read by the step alone that writes it.
            for slot, count in enumerate(np.minimum(held, LENGTH - 1).tolist()):
                torch.testing.assert_close(mine[slot, :, :count], theirs[slot, :, :count], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch detects no GPU")
def test_graphs_on_a_gpu_answer_as_the_cpu_does() -> None:
    from benchmarks.gpu.decoders import TINY_DECODER, random_weights

    devices = torch.device("cuda"), torch.device("cpu")
    both = [
        FloverRunner(TINY_DECODER, random_weights(TINY_DECODER, device, torch.float32), slots=5, max_length=128)
        for device in devices
    ]
    both[0].warm_up()
    draw = np.random.default_rng(0)
    for slot in range(5):
        ids = draw.integers(0, TINY_DECODER.vocabulary, 20)
        first, second = (runner.prefill(slot, ids, 0) for runner in both)
        assert first is not None
        torch.testing.assert_close(first.cpu(), second, rtol=1e-3, atol=1e-3)
    for step in range(70):
        begin, end = sorted(draw.choice(6, 2, replace=False).tolist())
        ids, positions = draw.integers(0, TINY_DECODER.vocabulary, end - begin), np.full(end - begin, 20 + step)
        for runner in both:  # those outside of the window too, so that all slots hold as many tokens
            runner.decode(0, 5, np.zeros(5, np.int64), np.full(5, 20 + step))
        first, second = (runner.decode(begin, end, ids, positions) for runner in both)
        torch.testing.assert_close(first.cpu(), second, rtol=1e-3, atol=1e-3)
