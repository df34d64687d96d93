"""Random texts."""

from __future__ import annotations

import random

WORDS = ("please", "book", "cancel", "change", "flight", "hotel", "weather", "music", "song", "actor", "good", "bad")


def make_texts(count: int, seed: int, longest: int = 40) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]
