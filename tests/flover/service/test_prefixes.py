"""Prompts that start from tokens that slots hold: tokens equal those computed without, and are counted."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import POSITIONS, tiny_model, tiny_runner
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tests.flover.service.runners import EOS, MAX_LENGTH, Gate, ScriptedMixedRunner, ScriptedRunner, delay_pass, greedy
from tests.flover.service.running import FakePrompt, RunningService, running
from tests.flover.service.test_tasks import put
from tidal.errors import Cancelled, Internal

SHARED = list(range(100, 130))


def prompts(rng: random.Random, count: int) -> Iterator[list[int]]:
    """Prompts that extend each other, begin alike, are equal, or have nothing in common."""
    before = [SHARED]
    for _ in range(count):
        start = rng.choice([SHARED, *before[-4:]])
        prompt = start[: rng.choice((len(start), len(start), 20, rng.randint(0, len(start))))]
        prompt = [*prompt, *(rng.randrange(EOS) for _ in range(rng.randint(0, 12)))][:50] or [1]
        before.append(prompt)
        yield prompt


def generate(service: RunningService, prompt: Sequence[int], **options: Any) -> tuple[list[int], int]:
    """Return the tokens of a request by itself and its number of cached tokens."""
    request = FakePrompt(prompt, **options)
    service.ask(request)
    return request.tokens(), int(request.wait()["cached_tokens"].item())


@pytest.mark.parametrize(("shuffle", "random_moves"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("made", [ScriptedRunner, ScriptedMixedRunner])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_tokens_are_those_of_prompts_computed_as_a_whole(
    tmp_path: Path, made: type[ScriptedRunner], shuffle: bool, random_moves: bool, seed: int
) -> None:
    """Random arrivals, cancellations, beams, texts per prompt and tasks, over slots that move before every step."""
    rng, decoder = random.Random(seed), made(5)
    decoder.before = delay_pass
    names = [None, put(tmp_path, 0), put(tmp_path, 1)]
    with running(tmp_path, decoder, shuffle=shuffle, random_moves=random_moves) as service:
        asked = []
        for prompt in prompts(rng, 80):
            # Mixed passes have no tasks.
            number = rng.choice((0, 0, 0, 1, 2)) if made is ScriptedRunner else 0
            request = FakePrompt(prompt, stream=rng.random() < 0.5, max_tokens=rng.randint(1, 25), task=names[number])
            beside = FakePrompt(prompt, max_tokens=3, num_beams=2)
            service.ask(request, *([beside] if rng.random() < 0.1 else []))
            asked.append((prompt, request, None if number == 0 else number - 1))
            time.sleep(rng.random() * 0.004)
            if rng.random() < 0.3:
                rng.choice(asked[-4:])[1].withdrawn = True
        cached = 0
        for prompt, request, task in asked:
            expected = greedy(prompt, min(request.options.max_tokens or 0, MAX_LENGTH - len(prompt)), task)
            try:
                assert request.tokens() == expected
                count = request.wait()["cached_tokens"].item()
                assert count == 0 or 16 <= count < len(prompt)
                cached += count
            except Cancelled:
                assert request.withdrawn
        for each in service.open:
            if each.error is None:
                each.wait()
        assert cached > 200
        assert service.metric("prefix_tokens_total") >= cached
        assert service.metric("prefix_hits_total") > 10


@pytest.mark.parametrize(
    "family",
    ["gpt2", "gemma3_text", *(pytest.param(each, marks=pytest.mark.slow) for each in ("llama", "gemma2", "olmo2"))],
)
def test_tokens_of_a_model_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    model, rng = tiny_model(family), random.Random(3)
    decoder = tiny_runner(model, slots=4, max_length=POSITIONS)
    with running(tmp_path, decoder, random_moves=True, max_length=POSITIONS) as service:
        asked = []
        for prompt in prompts(rng, 40):
            request = FakePrompt(prompt, max_tokens=12, ignore_eos=True)
            service.ask(request)
            asked.append((prompt, request))
            time.sleep(rng.random() * 0.01)
            if rng.random() < 0.2:
                rng.choice(asked[-4:])[1].withdrawn = True
        for prompt, request in asked:
            try:
                assert request.tokens() == generated_by_transformers(model, np.array(prompt), 12)
            except Cancelled:
                assert request.withdrawn
        assert service.metric("prefix_tokens_total") > 200


def test_the_next_turn_of_a_chat_computes_only_what_is_new(tmp_path: Path) -> None:
    decoder = ScriptedRunner(2)
    with running(tmp_path, decoder) as service:
        answer, cached = generate(service, SHARED, max_tokens=5, ignore_eos=True)
        assert cached == 0
        turn = [*SHARED, *answer, 7, 8]
        found, cached = generate(service, turn, max_tokens=3)
        assert (found, cached) == (greedy(turn, 3), len(SHARED) + 4)  # the last token of an answer is not held
        assert decoder.chunks == [(0, 30), (34, 37)]
        assert service.metric("prompt_tokens_total") == 33
        # Computed again is the last token, whose logits are needed.
        assert generate(service, turn, max_tokens=3) == (greedy(turn, 3), len(turn) - 1)
        assert service.counts("prefix_hits_total", 2)


def test_prompts_that_arrive_together_compute_their_common_prefix_once(tmp_path: Path) -> None:
    decoder = ScriptedMixedRunner(4)
    gate = Gate("prefill", 0)
    decoder.before = gate
    with running(tmp_path, decoder) as service:
        before = FakePrompt([3], max_tokens=1)
        service.ask(before)
        assert gate.at(0)
        asked = [FakePrompt([*SHARED, number], max_tokens=2) for number in range(4)]
        assert service.arrives(*asked)
        gate.open()
        for number, request in enumerate(asked):
            assert request.tokens() == greedy([*SHARED, number], 2)
        assert sorted(request.wait()["cached_tokens"].item() for request in asked) == [0, 30, 30, 30]
        assert service.metric("prompt_tokens_total") == 1 + 31 + 3


def test_texts_of_one_prompt_compute_it_once(tmp_path: Path) -> None:
    with running(tmp_path, ScriptedRunner(4)) as service:
        request = FakePrompt(SHARED, max_tokens=3, n=3, seed=1)
        service.ask(request)
        assert sorted(request.wait()["cached_tokens"].tolist()) == [0, 29, 29]


def test_another_task_or_a_replaced_one_computes_its_prompt(tmp_path: Path) -> None:
    name = put(tmp_path, 1)
    with running(tmp_path, ScriptedRunner(3)) as service:
        text = "a prompt of some thirty bytes."

        def cached(**options: Any) -> int:
            request = FakePrompt(text, max_tokens=2, **options)
            service.ask(request)
            return int(request.wait()["cached_tokens"].item())

        assert cached() == 0
        assert cached(task=name) == 0
        assert cached(task=name) == cached() == 29
        put(tmp_path, 2, name=name, replace=True)
        assert until(lambda: cached(task=name) == 0)  # once the task is replaced


def test_what_a_failed_generation_held_is_not_reused(tmp_path: Path) -> None:
    decoder = ScriptedRunner(2)
    decoder.undefined_for = lambda history: len(history) == len(SHARED) + 2
    with running(tmp_path, decoder) as service:
        with pytest.raises(Internal, match="NaN"):
            generate(service, SHARED, max_tokens=5, ignore_eos=True)
        decoder.undefined_for = lambda _history: False
        assert generate(service, SHARED, max_tokens=2) == (greedy(SHARED, 2), 0)


def test_cleared_slots_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal.flover.service._IDLE_CHECK_S", 0.05)
    decoder = ScriptedRunner(1)

    def clear(_written: object) -> tuple[int, ...]:
        decoder.checks += 1
        decoder.memory[0] = -1
        return (0,)

    decoder.repair = clear  # type: ignore[method-assign]
    with running(tmp_path, decoder) as service:
        generate(service, SHARED, max_tokens=2)
        assert service.counts("repaired_slots_total", 1)
        assert generate(service, SHARED, max_tokens=2) == (greedy(SHARED, 2), 0)


def test_a_failed_copy_fails_its_own_request(tmp_path: Path) -> None:
    decoder = ScriptedRunner(3)

    def fail(_copies: object, **_options: object) -> int:
        raise RuntimeError("no memory")

    with running(tmp_path, decoder) as service:
        generate(service, [*SHARED, 1], max_tokens=2)
        decoder.copy_slots = fail  # type: ignore[method-assign]
        with pytest.raises(Internal, match="no memory"):
            generate(service, [*SHARED, 2, 3], max_tokens=2)
        assert generate(service, [5], max_tokens=3)[0] == greedy([5], 3)


def test_what_slots_held_before_a_failed_move_is_not_reused(tmp_path: Path) -> None:
    gate, decoder = Gate("decode"), ScriptedRunner(4)
    with running(tmp_path, decoder) as service:
        generate(service, SHARED, max_tokens=2)
        decoder.before = gate
        asked = [FakePrompt([number], max_tokens=length) for number, length in ((1, 40), (2, 2), (3, 40))]
        service.ask(*asked)

        def fail(_moves: object, _tokens: object, **_options: object) -> int:
            decoder.memory[:] = -1  # it has moved some tokens
            raise RuntimeError("no memory")

        move, decoder.move_slots = decoder.move_slots, fail  # type: ignore[method-assign]
        gate.open()
        with pytest.raises(Internal, match="no memory"):
            asked[-1].wait()
        decoder.move_slots = move  # type: ignore[method-assign]
        assert generate(service, SHARED, max_tokens=2) == (greedy(SHARED, 2), 0)


def test_reuse_can_be_switched_off(tmp_path: Path) -> None:
    decoder = ScriptedRunner(2)
    with running(tmp_path, decoder, reuse_prefixes=False) as service:
        for _ in range(2):
            assert generate(service, SHARED, max_tokens=2) == (greedy(SHARED, 2), 0)
        assert decoder.chunks == [(0, 30)] * 2
        assert service.metric("prefix_hits_total") == 0


def test_a_copied_prefix_has_the_bytes_of_a_computed_one() -> None:
    """In float32 the keys and values of a slot that starts from a copy are those of the source, bit for bit."""
    from tidal.flover.memory.slots import SlotCopy

    runner = tiny_runner(tiny_model("llama"), slots=2)
    ids = np.random.default_rng(0).integers(0, 257, 60)
    whole = runner.prefill(0, ids, 0)
    runner.copy_slots([SlotCopy(0, 1, 0, 40)])
    continued, again = runner.prefill(1, ids[40:], 40), runner.prefill(0, ids[40:], 40)
    assert whole is not None
    assert continued is not None
    assert again is not None
    assert torch.equal(continued, again)
    torch.testing.assert_close(continued, whole, rtol=1e-5, atol=1e-5)
