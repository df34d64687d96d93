"""Assignment of beams to slots: every slot holds its beam's text after each step, with the fewest copied tokens."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.flover.beams import BeamSlots
from tidal.flover.memory.slots import SlotCopy


def least(origins: list[list[int]], slots: list[list[int]]) -> int:
    """Return the fewest tokens to copy for these texts to be in these slots, by brute force."""

    def cost(order: tuple[int, ...]) -> int:
        return sum(len(text) - common(text, slots[slot]) for text, slot in zip(origins, order, strict=True))

    return min(map(cost, itertools.permutations(range(len(slots)))))


def common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(max_examples=60)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 8), st.randoms(use_true_random=False))
def test_random_searches_copy_the_fewest_tokens(beams: int, prompt: int, steps: int, rng: random.Random) -> None:
    slots = BeamSlots(beams)
    memory: list[list[int]] = [[0] * prompt, *([] for _ in range(beams - 1))]
    texts = [[0] * prompt for _ in range(beams)]  # of each beam, as far as they are in slots
    for step in range(steps):
        parents = [rng.randrange(beams) for _ in range(beams)] if step else [0] * beams
        wanted = [texts[parent] for parent in parents]
        fewest = least(wanted, memory)
        copies = slots.reorder(parents, len(texts[0]))
        assert not {each.source for each in copies} & {each.target for each in copies}
        for each in copies:
            memory[each.target][each.begin :] = memory[each.source][each.begin : each.end]
        assert sum(each.end - each.begin for each in copies) == fewest
        assert [memory[slot] for slot in slots.of_beams] == wanted
        # Beams of one source go on with different tokens.
        texts = [[*text, 1 + number] for number, text in enumerate(wanted)]
        for slot, text in zip(slots.of_beams, texts, strict=True):
            memory[slot] = list(text)


def test_continued_beams_keep_their_slots() -> None:
    slots = BeamSlots(3)
    assert slots.reorder([0, 0, 0], 5) == (SlotCopy(0, 1, 0, 5), SlotCopy(0, 2, 0, 5))
    assert slots.reorder([2, 0, 1], 6) == ()
    assert slots.of_beams == [2, 0, 1]
    # Slot 1's beam continues twice; slot 0 holds the prompt's 5 tokens of it already.
    assert slots.reorder([2, 2, 0], 7) == (SlotCopy(1, 0, 5, 7),)
    assert slots.of_beams == [1, 0, 2]
