"""Slots of a draft model: what they are taken to hold is what passes wrote, whatever becomes of generations."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flover.service.runners import MAX_LENGTH, VOCABULARY, ScriptedMixedRunner, logits_of
from tidal.flover.engine.draft_model import DraftModel
from tidal.flover.engine.draft_slots import DraftSlots
from tidal.flover.engine.runners import SharedRunner
from tidal.flover.policies.committed import CommittedMemory
from tidal.flover.policies.drafting import Drafting
from tidal.flover.sampling import Sampler, SamplingParams


class Text:
    """A generation, as a draft model sees it."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt_ids = np.array(prompt, np.int64)
        self.prompt_tokens, self.max_tokens = len(prompt), MAX_LENGTH
        self.tokens = [prompt[-1]]
        self.method = Sampler(SamplingParams(temperature=0), self.prompt_ids)

    @property
    def ids(self) -> list[int]:
        return [*self.prompt_ids.tolist(), *self.tokens]


class Checking(ScriptedMixedRunner):
    """A runner whose rows attend to tokens that passes wrote, and to no others."""

    def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
        assert self.memory[slot, :length].min() >= 0
        return super()._logits(slot, length, task)


def drafted(ids: list[int], depth: int) -> list[int]:
    """What the scripted runner drafts behind a sequence."""
    history = list(ids)
    for _ in range(depth):
        history.append(int(logits_of(tuple(history)).argmax()))
    return history[len(ids) :]


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([None, 40, 70]))
@settings(max_examples=60, deadline=None)
def test_drafts_follow_the_sequences_whatever_happens_to_them(seed: int, slots: int, budget: int | None) -> None:
    """Texts that go on as drafted or otherwise, pause, end and return; the runner checks the budget after each pass."""
    rng = random.Random(seed)
    runner = Checking(slots, budget)
    model = DraftModel(SharedRunner(runner), max_length=MAX_LENGTH, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    shared = [rng.randrange(250) for _ in range(20)]
    texts = [Text([*shared[: rng.choice((0, 20))], *(rng.randrange(250) for _ in range(5))]) for _ in range(5)]
    made = 0
    for _ in range(30):
        running = [each for each in texts if rng.random() < 0.7 and len(each.ids) < MAX_LENGTH - 6]
        model.follow(cast(Any, running))
        wanted = {}
        for each in running:
            uncached = model.uncached(cast(Any, each))
            assert 1 <= uncached <= len(each.ids)
            if rng.random() < 0.8:
                count = uncached if rng.random() < 0.8 else rng.randint(1, uncached)
                depth = min(rng.randint(0, 4), model.room(cast(Any, each))) if count == uncached else 0
                wanted[each] = Drafting(count, depth)
        found = model.draft(cast(Any, wanted))
        for each, draft in found.items():
            text = cast(Text, each)
            assert draft == drafted(text.ids, wanted[text].depth)
            made += 1
        assert budget is not None or slots < 5 or found.keys() == {each for each, (_, depth) in wanted.items() if depth}
        for each in running:
            draft = found.get(cast(Any, each), [])
            kept = draft[: rng.randint(0, len(draft))]
            each.tokens += [*kept, rng.randrange(250)]
            if rng.random() < 0.1:
                texts[texts.index(each)] = Text([*each.ids[: rng.randint(1, len(each.ids))], rng.randrange(250)][:40])
    assert made > 0


def test_a_prompt_takes_what_another_slot_holds_of_it() -> None:
    runner = Checking(3)
    model = DraftModel(SharedRunner(runner), max_length=MAX_LENGTH, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    texts = [Text([*range(30), number]) for number in range(3)]
    for each in texts:
        uncached = model.uncached(cast(Any, each))
        assert model.draft(cast(Any, {each: Drafting(uncached, 2)})) == {each: drafted(each.ids, 2)}
    ranges = [chunk for _, chunks in runner.passes for chunk in chunks]
    assert ranges == [(0, 32), (30, 32), (30, 32)]


def test_a_token_that_the_draft_model_does_not_have_is_not_prefilled() -> None:
    runner = Checking(2)
    model = DraftModel(SharedRunner(runner), max_length=MAX_LENGTH, vocabulary=200, target_vocabulary=VOCABULARY)
    text = Text([1, 2, 220])
    assert model.room(cast(Any, text)) > 0
    assert model.draft(cast(Any, {text: Drafting(4, 2)})) == {}
    assert model.room(cast(Any, text)) == 0
    assert not runner.passes


@pytest.mark.parametrize("vocabulary", [VOCABULARY - 7, VOCABULARY + 7])
def test_a_padded_vocabulary_drafts_tokens_that_both_have(vocabulary: int) -> None:
    class Padded(Checking):
        def _logits(self, slot: int, length: int, task: Any) -> np.ndarray:
            found = np.full(vocabulary, 100, np.float32)
            own = super()._logits(slot, length, task)[:vocabulary]
            found[: len(own)] = own
            return found

        def mixed(self, *inputs: Any) -> Any:
            # The scripted runner's rows have its own vocabulary where there are none.
            decoded, ended = super().mixed(*inputs)
            return decoded if len(decoded) else decoded.new_empty(0, vocabulary), ended

    model = DraftModel(
        SharedRunner(Padded(2)), max_length=MAX_LENGTH, vocabulary=vocabulary, target_vocabulary=VOCABULARY
    )
    text = Text([1, 2, 3])
    text.method = Sampler(
        SamplingParams(temperature=1, seed=3, logit_bias=((VOCABULARY - 1, -100.0),)), text.prompt_ids
    )
    (draft,) = model.draft(cast(Any, {text: Drafting(4, 3)})).values()
    assert len(draft) == 3
    assert max(draft) < min(vocabulary, VOCABULARY)


def test_no_more_generations_are_drafted_for_than_there_are_slots_and_room() -> None:
    slots = DraftSlots(1, CommittedMemory(1, ScriptedMixedRunner.pages, 8))
    first, second = Text([1, 2]), Text([3])
    assert slots.allocate(cast(Any, first)) is None
    with pytest.raises(LookupError, match="no slot is free"):
        slots.allocate(cast(Any, second))
    assert slots.commit({0: 9}) == ({}, False)
    assert slots.commit({0: 8}) == ({}, True)
    slots.follow([])
    assert slots.allocate(cast(Any, second)) is None
