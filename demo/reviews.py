"""Positive and negative reviews generated from templates, so that the samples need no dataset."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

LABELS = ("NEGATIVE", "POSITIVE")

_THINGS = (
    "film",
    "book",
    "concert",
    "meal",
    "hotel",
    "walk",
    "afternoon",
    "lecture",
    "game",
    "play",
    "exhibition",
    "trip",
)
_PRAISE = ("lovely", "wonderful", "gripping", "delightful", "funny", "moving", "brilliant", "charming", "excellent")
_BLAME = ("dull", "dreadful", "tedious", "clumsy", "boring", "disappointing", "awful", "lifeless", "annoying")
_TEMPLATES = (
    "what a {word} {thing}",
    "the {thing} was {word} from beginning to end",
    "I found this {thing} {word}",
    "my friends called the {thing} {word}, and they are right",
    "a {word} {thing}, and it only got more so",
    "honestly the most {word} {thing} of the year",
)
#: Templates whose sentiment is not in a single word, on which a small model has low confidence.
_HARD = {
    "POSITIVE": (
        "two hours that felt like ten minutes, I could watch the {thing} again",
        "I expected a {blame} {thing} and was wrong about it",
        "not {blame} at all, this {thing}",
        "the {thing} is anything but {blame}",
    ),
    "NEGATIVE": (
        "two hours that felt like four, I left the {thing} early",
        "I expected a {praise} {thing} and was wrong about it",
        "not {praise} at all, this {thing}",
        "the {thing} is anything but {praise}",
    ),
}


def make_reviews(count: int, seed: int) -> list[tuple[str, int]]:
    """Return texts with label numbers; a third of them have negations or comparisons.

    Args:
        count: Number of reviews.
        seed: Seed of the random choices.
    """
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label = draw.randrange(2)
        hard = draw.random() < 1 / 3
        words: Sequence[str] = _PRAISE if label else _BLAME
        template = draw.choice(_HARD[LABELS[label]] if hard else _TEMPLATES)
        text = template.format(
            word=draw.choice(words), thing=draw.choice(_THINGS), praise=draw.choice(_PRAISE), blame=draw.choice(_BLAME)
        )
        found.append((text, label))
    return found


def write_reviews(path: Path, count: int, seed: int) -> None:
    """Write reviews in the format of `tidal build` for labelled texts: a header, then a text and its label per line."""
    lines = [f"{text}\t{LABELS[label]}" for text, label in make_reviews(count, seed)]
    path.write_text("\n".join(("text\tlabel", *lines)) + "\n")
