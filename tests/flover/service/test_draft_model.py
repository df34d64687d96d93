"""A draft model: texts equal those without it, whatever it drafts, and its slots hold what they are taken to hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.decoders import POSITIONS, VOCABULARY, tiny_model, tiny_runner
from testing.waiting import until
from tests.flover.generating import generated_by_transformers
from tests.flover.service.runners import MAX_LENGTH, ScriptedMixedRunner, delay_pass, logits_of
from tests.flover.service.running import FakePrompt, RunningService, ask_at_random, running
from tests.flover.service.test_tasks import put
from tidal.errors import Internal


class Peaked(ScriptedMixedRunner):
    """A scripted runner with one likely token behind each history."""

    def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
        history = self.memory[slot, :length]
        assert history.min() >= 0, "a row attends to a position that no pass has written"
        return super()._logits(slot, length, task) * 3


class Drafter(Peaked):
    """A draft model that has the logits of `Peaked` behind all but one of so many histories.

    Args:
        slots: Number of slots.
        wrong: Number of histories of which one has other logits; 1: all.
        budget: Most tokens of all slots in whole pages; None: those of all slots.
    """

    def __init__(self, slots: int = 4, wrong: int = 5, budget: int | None = None) -> None:
        super().__init__(slots, budget)
        self._wrong = wrong

    def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
        history = tuple(self.memory[slot, :length].tolist())
        if sum(history) % self._wrong == 0:
            return logits_of((-7, *history)) * 3
        return super()._logits(slot, length, task)


def random_requests(rng: random.Random, task: str) -> Iterator[FakePrompt]:
    """Requests of all kinds; four of ten begin with the same tokens."""
    shared = [rng.randrange(250) for _ in range(18)]
    for number in range(50):
        prompt = [rng.randrange(250) for _ in range(rng.randint(1, 20))]
        options: dict[str, Any] = {"max_tokens": rng.randint(1, 25), "stream": rng.random() < 0.5}
        kind = rng.random()
        if kind < 0.05:
            options.update(num_beams=2, stream=False)
        elif kind < 0.4:
            options.update(seed=number, temperature=rng.choice((0.5, 1.5)), top_p=rng.choice((1.0, 0.9)))
        elif kind < 0.5:
            options.update(repetition_penalty=1.3, min_tokens=1)
        elif kind < 0.53:
            options.update(task=task)
        elif kind < 0.6:
            options.update(seed=number, n=2, stream=False)
        elif kind < 0.7:
            options.update(logprobs=True, top_logprobs=2)
        yield FakePrompt([*shared, *prompt] if rng.random() < 0.4 else prompt, **options)


def all_tokens(folder: Path, drafter: Drafter | None, *, seed: int, budget: int | None, **moves: Any) -> list[Any]:
    """Tokens of random requests, None for cancelled ones."""
    folder.mkdir()
    rng, decoder, name = random.Random(seed), Peaked(5, budget), put(folder, 0)
    # Slow passes, so that several texts run at once and exceed a budget.
    decoder.before = delay_pass if budget is None else lambda _kind, _number: time.sleep(0.005)
    with running(folder, decoder, speculates=drafter is not None, drafter=drafter, **moves) as service:
        found = ask_at_random(service, random_requests(rng, name), rng, 0.05)
        if drafter is not None:
            assert until(lambda: service.metric("accepted_draft_tokens_total", source="model") > 10)
            checked = service.metric("draft_tokens_total", source="model")
            assert checked > service.metric("accepted_draft_tokens_total", source="model")
            assert service.metric("preemptions_total") > 0 or budget is None
    return found


@pytest.mark.parametrize(
    ("moves", "budget", "slots", "own"),
    [
        ({}, None, 5, None),
        ({"shuffle": False}, None, 5, None),
        ({"random_moves": True}, None, 5, None),
        ({}, 100, 5, 100),  # generations are preempted, and the draft model's memory is short, too
        ({}, None, 2, 70),  # fewer slots than generations
    ],
)
def test_tokens_are_those_without_a_draft_model(
    tmp_path: Path, moves: dict[str, bool], budget: int | None, slots: int, own: int | None
) -> None:
    """Random arrivals, cancellations, samplers, beams and tasks over slots that move."""
    drafted = all_tokens(tmp_path / "drafted", Drafter(slots, budget=own), seed=3, budget=budget, **moves)
    assert drafted == all_tokens(tmp_path / "plain", None, seed=3, budget=None, **moves)


def generate(service: RunningService, prompt: Sequence[int], **options: Any) -> list[int]:
    request = FakePrompt(prompt, **options)
    service.ask(request)
    return request.tokens()


@pytest.mark.slow
def test_sampled_tokens_have_the_distribution_of_the_model(tmp_path: Path) -> None:
    """The third token behind a prompt, whose distribution is computed from the logits, by a draft model that errs."""
    decoder, prompt, count = Peaked(8), [1, 2, 3], 1600

    def probabilities(history: Sequence[int]) -> np.ndarray:
        logits = logits_of(tuple(history)).astype(np.float64) * 3 / 0.6
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    expected, first = np.zeros(VOCABULARY), probabilities(prompt)
    for one in np.argsort(first)[-40:]:
        second = probabilities([*prompt, one])
        for two in np.argsort(second)[-40:]:
            expected += first[one] * second[two] * probabilities([*prompt, int(one), int(two)])
    assert expected.sum() > 0.99
    with running(tmp_path, decoder, speculates=True, drafter=Drafter(8, wrong=3)) as service:
        found = Counter[int]()
        for first_seed in range(0, count, 8):  # steps beside prompts have no drafts
            seeds = range(first_seed, first_seed + 8)
            requests = [FakePrompt(prompt, max_tokens=5, seed=n, temperature=0.6, ignore_eos=True) for n in seeds]
            service.ask(*requests)
            found.update(request.tokens()[2] for request in requests)
        assert (
            service.metric("accepted_draft_tokens_total", source="model") > count / 50
        )  # how many are drafted depends on measured times
    likely = np.argsort(expected)[-25:]
    observed = np.array([found[token] for token in likely.tolist()])
    deviations = (observed - expected[likely] * count) / np.sqrt(expected[likely] * count)
    # The sum of 25 squares has a mean of about 25 and a standard deviation of 7; the seeds are fixed.
    assert (deviations**2).sum() < 60, deviations


def test_an_alike_model_drafts_what_a_sampler_draws(tmp_path: Path) -> None:
    """Drafts come from the generation's own random numbers: all are accepted where the distributions are the same."""
    with running(tmp_path, Peaked(2), speculates=True, drafter=Drafter(2, wrong=10**9)) as service:
        for seed in range(6):
            generate(service, [seed, 2, 3], max_tokens=40, seed=seed, temperature=1.3, top_k=50, ignore_eos=True)
        assert until(lambda: service.metric("draft_tokens_total", source="model") > 100)
        gained = service.metric("accepted_draft_tokens_total", source="model")
        assert gained > 0.95 * service.metric("draft_tokens_total", source="model")


def test_a_model_whose_drafts_are_rejected_drafts_no_more(tmp_path: Path) -> None:
    with running(tmp_path, Peaked(2), speculates=True, drafter=(drafter := Drafter(2, wrong=1))) as service:
        for seed in range(8):
            generate(service, [seed, 2, 3], max_tokens=50, ignore_eos=True)
        passes = len(drafter.passes)
        for seed in range(20):
            generate(service, [seed, 7, 3], max_tokens=50, ignore_eos=True)
        # A token is drafted every 128 steps, to learn whether drafts would be accepted by now.
        assert len(drafter.passes) - passes < 40


def test_lookup_drafts_where_it_is_accepted_more_often(tmp_path: Path) -> None:
    class Looping(Peaked):
        def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
            return logits_of((int(self.memory[slot, length - 1]) % 5,))

    with running(tmp_path, Looping(1), speculates=True, drafter=Drafter(1, wrong=1)) as service:
        for _ in range(4):
            generate(service, [1, 2, 3], max_tokens=60)
        assert until(lambda: service.metric("accepted_draft_tokens_total", source="lookup") > 60)
        assert service.metric("accepted_draft_tokens_total", source="model") == 0


def test_the_latest_turn_of_a_chat_is_prefilled_once(tmp_path: Path) -> None:
    """Prompts that begin with an earlier prompt and its text start from the slot that holds them."""
    with running(tmp_path, Peaked(2), speculates=True, drafter=(drafter := Drafter(2, wrong=10**9))) as service:
        prompt = list(range(20))
        prompt += generate(service, prompt, max_tokens=20, ignore_eos=True)
        before = sum(end - start for _, chunks in drafter.passes for start, end in chunks)
        generate(service, [*prompt, 5, 6], max_tokens=10, ignore_eos=True)
        assert sum(end - start for _, chunks in drafter.passes for start, end in chunks) - before < 15


def test_a_failed_pass_of_the_draft_model_harms_no_text(tmp_path: Path) -> None:
    drafter = Drafter(2, wrong=10**9)

    def fail(kind: str, number: int) -> None:
        if number == 5:
            raise Internal("no memory")

    drafter.before = fail
    with running(tmp_path / ".", Peaked(2), speculates=True, drafter=drafter) as service:
        found = generate(service, [1, 2, 3], max_tokens=50)
    with running(tmp_path / ".", Peaked(2)) as service:
        assert generate(service, [1, 2, 3], max_tokens=50) == found
    assert len(drafter.passes) == 6


def test_undefined_logits_of_the_draft_model_end_its_drafts_only(tmp_path: Path) -> None:
    drafter = Drafter(1, wrong=10**9)
    drafter.undefined_for = lambda history: len(history) % 3 == 0
    with running(tmp_path / ".", Peaked(1), speculates=True, drafter=drafter) as service:
        found = generate(service, [1, 2, 3], max_tokens=50)
        assert until(lambda: service.metric("accepted_draft_tokens_total", source="model") > 5)
    with running(tmp_path / ".", Peaked(1)) as service:
        assert generate(service, [1, 2, 3], max_tokens=50) == found


def test_guided_and_stopped_texts_end_within_drafts(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {"guided_regex": "[ab]{5}[0-9]{3,9}", "max_tokens": 40},
        {"max_tokens": 500, "ignore_eos": True},
        *({"max_tokens": count} for count in range(1, 9)),
    ]
    texts = []
    for speculates in (True, False):
        drafter = Drafter(2) if speculates else None
        with running(tmp_path / ".", Peaked(2), speculates=speculates, drafter=drafter) as service:
            texts.append([generate(service, [1, 2, 3], **each) for each in options])
    assert texts[0] == texts[1]
    assert len(texts[0][1]) == MAX_LENGTH - 3


@pytest.mark.parametrize(("family", "own"), [("gpt2", "gpt2"), ("llama", "gpt2"), ("gemma2", "qwen3")])
def test_greedy_texts_of_real_decoders_equal_those_of_transformers(tmp_path: Path, family: str, own: str) -> None:
    """With a draft model that is the model itself, and with another one, which is always wrong."""
    model = tiny_model(family)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 250, length).tolist() for length in (5, 18, 40)]
    with torch.inference_mode():
        runner, drafter = tiny_runner(model, slots=3), tiny_runner(tiny_model(own), slots=3, max_length=MAX_LENGTH)
    with running(tmp_path, runner, speculates=True, drafter=drafter, max_length=POSITIONS) as service:
        asked = [FakePrompt(prompt, max_tokens=40) for prompt in prompts]
        service.ask(*asked)
        found = [request.tokens() for request in asked]
        assert until(lambda: service.metric("draft_tokens_total", source="model") > 0)
        gained = service.metric("accepted_draft_tokens_total", source="model")
        assert gained > 20 if own == family else gained < 20
    for prompt, tokens in zip(prompts, found, strict=True):
        assert tokens == generated_by_transformers(model, np.array(prompt), 40)[: len(tokens)]
