"""A budget of keys and values: generations that lose their slots continue as if nothing had happened."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.decoders import POSITIONS, tiny_model, tiny_runner
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tests.flover.service.runners import MAX_LENGTH, Gate, ScriptedMixedRunner, ScriptedRunner, delay_pass, greedy
from tests.flover.service.running import FakePrompt, RunningService, running
from tests.flover.service.test_prefixes import prompts
from tests.flover.service.test_speculation import Repeating
from tests.flover.service.test_tasks import put
from tidal.errors import Cancelled, InvalidArgument, Unavailable
from tidal.flover.engine.committing import CommittingRunner
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.engine.slots import GenerationSlots

SLOTS = 5
# Tokens of one full slot, a beam search, and little more; those of all slots are 320.
BUDGET = 96
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def random_options(rng: random.Random, number: int) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": rng.randint(1, 40), "stream": rng.random() < 0.5}
    kind = rng.random()
    if kind < 0.1:
        options.update(num_beams=2, stream=False, max_tokens=rng.randint(1, 8))
    elif kind < 0.4:
        options.update(seed=number, temperature=rng.choice((0.3, 1.5)), top_p=rng.choice((1.0, 0.9)))
    elif kind < 0.55:
        options.update(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, min_tokens=1)
    elif kind < 0.65:
        options.update(guided_json=SCHEMA)
    elif kind < 0.75:
        options.update(logprobs=True, top_logprobs=2)
    elif kind < 0.85:
        options.update(stop="e", ignore_eos=True)
    elif kind < 0.9:
        options.update(n=2, seed=number)
    return options


def answers(folder: Path, decoder: ScriptedRunner, seed: int, **options: Any) -> tuple[list[Any], float]:
    """Texts, tokens, ends and log probabilities of random requests, None for cancelled ones, and the preemptions."""
    folder.mkdir()
    rng = random.Random(seed)
    decoder.before = delay_pass
    # Passes of a runner that mixes have no tasks.
    task = put(folder, 0) if type(decoder) is ScriptedRunner else None
    with running(folder, decoder, **options) as service:
        asked = []
        for number, prompt in enumerate(prompts(rng, 60)):
            prompt = prompt[:22]
            own = random_options(rng, number)
            if "num_beams" not in own and rng.random() < 0.2:
                own["task"] = task
            request, cancels = FakePrompt(prompt, **own), rng.random() < 0.15
            asked.append((request, cancels))
            service.ask(request)
            time.sleep(rng.random() * (0.05 if number % 8 == 0 else 0.002))
            if cancels:
                request.withdrawn = True
        found: list[Any] = []
        for request, cancels in asked:
            try:
                tokens = request.by_prompt()
            except Cancelled:
                assert cancels
            found.append(None if cancels else (tokens, *received(request)))
        return found, service.metric("preemptions_total")


def received(request: FakePrompt) -> tuple[Any, ...]:
    """What the client of a request received besides tokens, parts joined."""
    parts = [*request.parts, request.wait()]
    texts: dict[int, bytes] = {}
    for part in parts:
        for index, text in zip(part["index"].tolist(), part["text_output"], strict=True):
            texts[index] = texts.get(index, b"") + text
    last = parts[-1]
    counts = [last[name].tolist() for name in ("finish_reason", "prompt_tokens", "generated_tokens")]
    logprobs = [row for part in parts for row in part.get("logprobs", np.empty(0)).tolist()]
    tops = [row for part in parts for row in part.get("top_token_ids", np.empty(0)).tolist()]
    return texts, counts, logprobs, tops


@pytest.mark.parametrize(("shuffle", "random_moves"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("made", [ScriptedRunner, ScriptedMixedRunner, Repeating])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_answers_are_those_without_a_budget(
    tmp_path: Path, made: Callable[..., ScriptedRunner], shuffle: bool, random_moves: bool, seed: int
) -> None:
    """Random arrivals, samplers, penalties, grammars, stops, beams, tasks, drafts and cancellations.

    The runner checks the budget after each pass, and forgets what it releases.
    """
    options: dict[str, Any] = {"shuffle": shuffle, "random_moves": random_moves, "speculates": made is Repeating}
    decoder = made(SLOTS, BUDGET)
    limited, preemptions = answers(tmp_path / "limited", decoder, seed, **options)
    free, none = answers(tmp_path / "free", made(SLOTS), seed, **options)
    for number, (one, other) in enumerate(zip(limited, free, strict=True)):
        assert one == other, f"request {number}"
    assert preemptions > 5
    assert decoder.released > 5
    assert none == 0


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_tokens_of_a_model_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    """In float32, with preemptions, prefixes, cancellations and moves; 16 tokens of a head fill a page of 4 KB."""
    wide = {"n_embd": 128, "n_head": 2} if family == "gpt2" else {"hidden_size": 128, "num_attention_heads": 2}
    model, rng = tiny_model(family, **wide), random.Random(3)
    pages = tiny_runner(model, slots=1, max_length=POSITIONS).pages
    decoder = tiny_runner(model, slots=4, max_length=POSITIONS, kv_cache_bytes=pages.bytes(POSITIONS) * 3 // 2)
    with running(tmp_path, decoder, random_moves=True, max_length=POSITIONS, speculates=True) as service:
        asked = []
        for prompt in prompts(rng, 40):
            count = rng.choice((5, 30, 60))
            request = FakePrompt(prompt, max_tokens=count, ignore_eos=True)
            service.ask(request)
            asked.append((prompt, count, request))
            time.sleep(rng.random() * 0.003)
            if rng.random() < 0.2:
                rng.choice(asked[-4:])[2].withdrawn = True
        for prompt, count, request in asked:
            try:
                assert request.tokens() == generated_by_transformers(model, np.array(prompt), count)
            except Cancelled:
                assert request.withdrawn
        assert service.metric("preemptions_total") > 2
        assert service.metric("recomputed_tokens_total") > 0
        assert service.metric("kv_cache_budget_bytes") == decoder.budget
        assert 0 < service.metric("kv_cache_bytes") <= decoder.budget


def start_two(service: RunningService, decoder: ScriptedRunner, **options: Any) -> tuple[FakePrompt, FakePrompt, Gate]:
    """Two streams of which the second is preempted, when the gate has blocked a step after that."""
    gate = Gate("decode")
    decoder.before = gate
    first, second = (FakePrompt([number] * 20, max_tokens=40, ignore_eos=True, stream=True, **options)
                     for number in range(2))  # fmt: skip
    service.ask(first)
    assert gate.at(0)
    assert service.arrives(second)
    while service.metric("waiting_generations") == 0:
        next_step(gate)
    return first, second, gate


def next_step(gate: Gate) -> None:
    step = gate.reached
    gate.let()
    assert gate.at(step + 1)


def test_a_preempted_stream_continues_and_is_counted_once(tmp_path: Path) -> None:
    decoder = ScriptedRunner(2, 80)
    with running(tmp_path, decoder) as service:
        first, second, gate = start_two(service, decoder)
        assert service.metric("running_generations") == service.metric("preemptions_total") == 1
        gate.open()
        for number, request in enumerate((first, second)):
            assert request.tokens() == greedy_on([number] * 20, 40)
            assert request.wait()["generated_tokens"].tolist() == [40]
            assert request.wait()["cached_tokens"].tolist() == [0]
        assert service.counts("generations_total", 2)
        assert service.metric("preemptions_total") == 1
        assert service.metric("generated_tokens_total") == 80
        assert service.metric("time_to_first_token_seconds_count") == service.metric("queue_seconds_count") == 2
        # Its slot keeps what the other one did not need.
        recomputed = service.metric("recomputed_tokens_total")
        assert 0 < recomputed < 40
        assert service.metric("prompt_tokens_total") == 40 + recomputed
        assert service.metric("prefix_hits_total") == 0


def greedy_on(prompt: list[int], count: int) -> list[int]:
    """Tokens of the scripted runner that do not end at the end-of-text token."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += greedy([*prompt, *tokens], count - len(tokens))
    return tokens


def test_a_preempted_generation_can_be_cancelled_and_miss_its_deadline(tmp_path: Path) -> None:
    decoder = ScriptedRunner(2, 80)
    with running(tmp_path, decoder) as service:
        first, second, gate = start_two(service, decoder)
        second.withdrawn = True
        time.sleep(0.3)  # waiting generations are checked every quarter of a second, after an iteration
        next_step(gate)
        assert until(lambda: second.cancel_seen)
        gate.open()
        assert first.tokens() == greedy_on([0] * 20, 40)
        with pytest.raises(Cancelled):
            second.wait()
    late_folder = tmp_path / "late"
    late_folder.mkdir()
    decoder = ScriptedRunner(2, 80)
    with running(late_folder, decoder) as service:
        first, second, gate = start_two(service, decoder)
        second.fail(Unavailable("the deadline passed"))  # as the boundary does
        gate.open()
        assert first.tokens() == greedy_on([0] * 20, 40)
        assert service.counts("waiting_generations", 0)


def test_a_search_that_never_fits_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, ScriptedRunner(SLOTS, BUDGET)) as service:
        bad = FakePrompt([1] * 10, max_tokens=40, num_beams=3)
        good = FakePrompt([1] * 10, max_tokens=20, num_beams=3)
        service.ask(bad, good)
        match = r"'num_beams': 3 beams of up to 50 tokens, .* take 156 bytes .* has 96 \(kv_cache_mb\): lower num_beams"
        with pytest.raises(InvalidArgument, match=match):
            bad.wait()
        good.wait()


def test_texts_of_one_request_are_preempted_one_by_one(tmp_path: Path) -> None:
    decoder = ScriptedRunner(4, 100)
    with running(tmp_path, decoder) as service:
        request = FakePrompt([7] * 20, n=3, seed=1, max_tokens=40, ignore_eos=True)
        alone = [FakePrompt([7] * 20, seed=1 + number, max_tokens=40, ignore_eos=True) for number in range(3)]
        service.ask(request)
        found = request.by_prompt()
        assert service.metric("preemptions_total") >= 1
        for each in alone:
            service.ask(each)
            each.wait()
        assert found == [each.tokens() for each in alone]


def test_the_memory_of_slots_stays_committed_for_the_next_owner() -> None:
    decoder = ScriptedRunner(2, MAX_LENGTH)  # checks the budget after each pass
    shared = SharedRunner(decoder)
    prompt = np.full(MAX_LENGTH // 2, 3)
    with CommittingRunner(shared, GenerationSlots(2, reuse=False)).use() as first:
        first.prefill(0, prompt, 0)
    owner = CommittingRunner(shared, GenerationSlots(2, reuse=False))
    assert owner.memory.written == [len(prompt), 0]
    with owner.use() as second:
        second.prefill(0, prompt, 0)
        assert not decoder.released
        for start in (0, len(prompt)):
            second.prefill(1, prompt, start)
    assert decoder.released == 1  # both do not fit
