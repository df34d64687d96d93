"""Drafted tokens: texts equal those of steps that give one token, whatever is drafted, and take fewer steps."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.decoders import FAMILIES, POSITIONS, tiny_model, tiny_runner
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tests.flover.service.runners import MAX_LENGTH, CheapCosts, ScriptedMixedRunner, delay_pass, logits_of
from tests.flover.service.running import FakePrompt, RunningService, ask_at_random, running
from tests.flover.service.test_tasks import put
from tidal.errors import Internal
from tidal.flover.engine.lookup import PromptLookup
from tidal.flover.engine.speculation import Speculation
from tidal.flover.policies import SpeculationPolicy
from tidal.flover.sampling import Sampler, SamplingParams


class Repeating(ScriptedMixedRunner):
    """A scripted runner whose logits depend on the latest token modulo a number: texts repeat themselves.

    One of 31 histories has logits of its own: so has the text behind it.
    """

    def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
        history = tuple(self.memory[slot, :length].tolist())
        assert min(history) >= 0, "a row attends to a position that no pass has written"
        if sum(history) % 31 == 0 or task is not None:
            return super()._logits(slot, length, task)
        return logits_of((history[-1] % 5,))

    @property
    def drafted(self) -> int:
        """Number of drafted tokens in all passes."""
        return sum(len(slots) - len(set(slots)) for slots, _ in self.passes)


def naive_draft(tokens: Sequence[int], most: int) -> list[int]:
    """What followed the latest occurrence of the last three tokens, else of the last two."""
    for count in (3, 2):
        last = list(tokens[-count:])
        for end in range(len(tokens) - 1, count - 1, -1):
            if len(tokens) > count and list(tokens[end - count : end]) == last:
                period = list(tokens[end:])
                return list(itertools.islice(itertools.cycle(period), most))
    return []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40), st.integers(1, 20))
@settings(max_examples=300)
def test_a_draft_is_what_followed_the_latest_occurrence(tokens: list[int], at: int, most: int) -> None:
    lookup = PromptLookup(tokens[:at])
    lookup.extend(tokens[at:])
    assert lookup.draft(most) == naive_draft(tokens, most)
    assert len(lookup) == len(tokens)


def random_requests(rng: random.Random, task: str) -> Iterator[FakePrompt]:
    """Requests of all kinds; half of the prompts are said twice."""
    for number in range(60):
        prompt = [rng.randrange(250) for _ in range(rng.randint(1, 20))] * rng.randint(1, 2)
        options: dict[str, Any] = {"max_tokens": rng.randint(1, 40), "stream": rng.random() < 0.5}
        kind = rng.random()
        if kind < 0.1:
            options.update(num_beams=2, stream=False)
        elif kind < 0.5:
            options.update(seed=number, temperature=rng.choice((0.3, 1.5)), top_p=rng.choice((1.0, 0.9)))
        elif kind < 0.6:
            options.update(repetition_penalty=1.3, min_tokens=1)
        elif kind < 0.62:
            options.update(task=task)
        elif kind < 0.75:
            options.update(logprobs=True, top_logprobs=2)
        yield FakePrompt(prompt, **options)


def all_tokens(folder: Path, *, speculates: bool, seed: int, **options: Any) -> tuple[list[Any], Repeating]:
    """Tokens of random requests, None for cancelled ones, and the runner."""
    folder.mkdir()
    rng, decoder, name = random.Random(seed), Repeating(5), put(folder, 0)
    decoder.before = delay_pass
    with running(folder, decoder, speculates=speculates, **options) as service:
        return ask_at_random(service, random_requests(rng, name), rng, 0.1), decoder


@pytest.mark.parametrize(("shuffle", "random_moves"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_tokens_are_those_without_drafts(tmp_path: Path, shuffle: bool, random_moves: bool, seed: int) -> None:
    """Random arrivals, cancellations, samplers, beams and tasks over slots that move before every pass."""
    moves = {"shuffle": shuffle, "random_moves": random_moves}
    drafted, decoder = all_tokens(tmp_path / "drafted", speculates=True, seed=seed, **moves)
    plain, other = all_tokens(tmp_path / "plain", speculates=False, seed=seed, **moves)
    assert drafted == plain
    assert decoder.drafted > 10
    assert other.drafted == 0


def generate(service: RunningService, prompt: Sequence[int], **options: Any) -> list[int]:
    request = FakePrompt(prompt, **options)
    service.ask(request)
    return request.tokens()


class Looping(Repeating):
    """Every text ends in a loop of at most five tokens."""

    def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
        return logits_of((int(self.memory[slot, length - 1]) % 5,))


def test_a_text_in_a_loop_takes_few_steps_and_is_counted(tmp_path: Path) -> None:
    decoder = Looping(2)
    with running(tmp_path, decoder, speculates=True) as service:
        request = FakePrompt([1, 2, 3], max_tokens=60, stream=True)
        service.ask(request)
        tokens = request.tokens()
        assert len(tokens) == 60
        steps = len(decoder.decodes) + len(decoder.passes)
        assert steps < 25
        # Steps are recorded after their tokens were sent.
        assert service.counts("generated_tokens_total", 60)
        assert service.counts("accepted_draft_tokens_total", 59 - steps)
        assert service.metric("draft_tokens_total") == decoder.drafted >= 59 - steps
        assert service.metric("step_seconds_count") == steps


def test_a_text_ends_at_its_last_token_within_a_draft(tmp_path: Path) -> None:
    """By the length of the text, of the slot, by a stop string, and by a stop token."""
    with running(tmp_path, Looping(2), speculates=False) as service:
        whole = generate(service, [1, 2, 3], max_tokens=60)
        stop = {"max_tokens": 60, "stop_token_ids": json.dumps([whole[-1]]), "min_tokens": 33}
        stopped = generate(service, [1, 2, 3], **stop)
        assert stopped[-1] == whole[-1]
    with running(tmp_path, decoder := Looping(2), speculates=True) as service:
        for count in range(30, 60):
            assert generate(service, [1, 2, 3], max_tokens=count) == whole[:count]
        assert generate(service, [1, 2, 3] * 12, max_tokens=500) == generate(service, [1, 2, 3] * 12, max_tokens=28)
        assert generate(service, [1, 2, 3], **stop) == stopped
    assert decoder.drafted > 0
    assert decoder.memory.shape[1] == MAX_LENGTH


def test_a_text_may_end_while_its_draft_is_not_checked() -> None:
    """And its draft was right, so that it would be looked up again."""

    class Text:
        task, slots, max_tokens, prompt_tokens = None, 1, 50, 4

        def __init__(self) -> None:
            self.prompt_ids = np.array([1, 2, 1, 2])
            self.tokens = [1]
            self.method = Sampler(SamplingParams(temperature=0), self.prompt_ids)

        def held_tokens(self, number: int) -> int:
            return 4

    policy, text = SpeculationPolicy(CheapCosts(), share=1e-6), Text()
    speculation, running_texts = Speculation(policy), cast(Any, [text])
    assert speculation.due()
    assert speculation.select(running_texts, lambda _: True) == {}
    text.tokens.append(2)
    speculation.forget(running_texts[0])
    assert speculation.passed(0.001) == []


def test_prompts_reuse_what_drafted_passes_left_in_slots(tmp_path: Path) -> None:
    with running(tmp_path, Looping(1), speculates=True) as service:
        first = generate(service, [1, 2, 3], max_tokens=40)
        request = FakePrompt([1, 2, 3, *first], max_tokens=10)
        service.ask(request)
        continued = request.tokens()
        assert request.wait()["cached_tokens"].item() >= 40
    with running(tmp_path, Looping(1)) as service:
        assert generate(service, [1, 2, 3], max_tokens=50) == first + continued


def test_a_failed_pass_with_drafts_runs_without_them(tmp_path: Path) -> None:
    decoder, failed = Looping(2), []

    def fail(kind: str, number: int) -> None:
        if kind == "mixed" and number % 2:
            failed.append(number)
            raise Internal("no memory for so many rows")

    decoder.before = fail
    with running(tmp_path, decoder, speculates=True) as service:
        tokens = generate(service, [1, 2, 3], max_tokens=60)
    with running(tmp_path, Looping(2)) as service:
        assert generate(service, [1, 2, 3], max_tokens=60) == tokens
    assert failed


def test_logits_that_are_undefined_behind_a_draft_end_one_text_only(tmp_path: Path) -> None:
    class Undefined(Looping):
        def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
            found = super()._logits(slot, length, task)
            broken = length == 40 and self.memory[slot, 0] == 9
            return np.full_like(found, np.nan) if broken else found

    decoder = Undefined(2)
    with running(tmp_path, decoder, speculates=True) as service:
        broken, sound = FakePrompt([9, 2, 3], max_tokens=60), FakePrompt([1, 2, 3], max_tokens=60)
        service.ask(broken, sound)
        with pytest.raises(Internal, match="NaN"):
            broken.tokens()
        assert len(sound.tokens()) == 60
        assert generate(service, [1, 2, 3], max_tokens=30) == sound.tokens()[:30]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_of_a_real_decoder_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = tiny_model(family)
    prompts = [[5, 6, 7] * 6, [9] * 12, list(range(20, 40))]
    with torch.inference_mode():
        runner = tiny_runner(model, slots=3)
    assert runner.runs_mixed
    with running(tmp_path, runner, speculates=True, max_length=POSITIONS) as service:
        asked = [FakePrompt(prompt, max_tokens=40) for prompt in prompts]
        service.ask(*asked)
        found = [request.tokens() for request in asked]
        assert until(lambda: service.metric("draft_tokens_total") > 0)
    for prompt, tokens in zip(prompts, found, strict=True):
        assert tokens == generated_by_transformers(model, np.array(prompt), 40)[: len(tokens)]
