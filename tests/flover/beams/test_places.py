"""Seats of beams hold their texts after every step, and no other way copies fewer tokens."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidal.flover.beams import Places
from tidal.flover.memory.slots import Copy


def least(origins: list[list[int]], seats: list[list[int]]) -> int:
    """The fewest tokens that bring these texts into these seats, by trying all ways."""

    def cost(order: tuple[int, ...]) -> int:
        return sum(len(text) - common(text, seats[seat]) for text, seat in zip(origins, order, strict=True))

    return min(map(cost, itertools.permutations(range(len(seats)))))


def common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(max_examples=60)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 8), st.randoms(use_true_random=False))
def test_any_search(beams: int, prompt: int, steps: int, luck: random.Random) -> None:
    places = Places(beams)
    memory: list[list[int]] = [[0] * prompt, *([] for _ in range(beams - 1))]
    texts = [[0] * prompt for _ in range(beams)]  # of each beam, as far as they are held
    for step in range(steps):
        sources = [luck.randrange(beams) for _ in range(beams)] if step else [0] * beams
        wanted = [texts[source] for source in sources]
        fewest = least(wanted, memory)
        copies = places.follow(sources, len(texts[0]))
        assert not {each.source for each in copies} & {each.target for each in copies}
        for each in copies:
            memory[each.target][each.begin :] = memory[each.source][each.begin : each.end]
        assert sum(each.end - each.begin for each in copies) == fewest
        assert [memory[seat] for seat in places.seats] == wanted
        # Beams of one source go on with different tokens.
        texts = [[*text, 1 + number] for number, text in enumerate(wanted)]
        for seat, text in zip(places.seats, texts, strict=True):
            memory[seat] = list(text)


def test_beams_that_go_on_stay_where_they_are() -> None:
    places = Places(3)
    assert places.follow([0, 0, 0], 5) == (Copy(0, 1, 0, 5), Copy(0, 2, 0, 5))
    assert places.follow([2, 0, 1], 6) == ()
    assert places.seats == [2, 0, 1]
    # Seat 1's beam goes on twice; seat 0 holds the prompt's 5 tokens of it already.
    assert places.follow([2, 2, 0], 7) == (Copy(1, 0, 5, 7),)
    assert places.seats == [1, 0, 2]
