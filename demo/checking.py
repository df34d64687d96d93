"""The check in the ensemble `text_to_checked_label`: a task that decides whether a label fits a text.

A classifier of eight intents assigns one of them to any text. The task is trained on matching and mismatching pairs,
also with texts of no intent, so it detects texts for which no label of the cascade is correct.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.tasks import train_one
from demo.texts import LABELS, make_examples
from tidal_client import Client

MODEL, TASK = "text_to_checked_label", "fits"
FITS, DOES_NOT = "fits", "does not fit"
# Texts of no intent: for training, and held out.
_SEEN = {
    "what is the capital of {}": ("France", "Peru", "Kenya", "Norway", "Japan"),
    "how do I get {} out of a white shirt": ("red wine", "coffee", "ink", "grass stains"),
    "my {} hurts when I get up in the morning": ("back", "left knee", "neck", "head"),
    "translate this {} into German": ("letter", "sentence", "contract", "recipe"),
    "who won the {} yesterday": ("football match", "election", "race", "lottery"),
    "please renew my {} before it runs out": ("passport", "insurance", "library card", "parking permit"),
    "how many {} go into a cake for six": ("eggs", "lemons", "spoons of sugar", "apples"),
    "tell me a joke about {}": ("lawyers", "cats", "engineers", "my boss"),
    "can you explain how a {} works": ("fridge", "nuclear reactor", "mortgage", "vaccine"),
    "I lost my {} on the bus": ("umbrella", "wallet", "keys", "left glove"),
    "the {} of my car makes a strange noise": ("engine", "clutch", "front wheel", "fan belt"),
    "what did {} paint in his last years": ("Monet", "Picasso", "Rembrandt", "Goya"),
}
_UNSEEN = {
    "is my parcel from {} on its way": ("the bookshop", "Norway", "my aunt", "the factory"),
    "which vaccines does a {} need": ("puppy", "baby", "traveller to Kenya", "nurse"),
    "recommend a {} about the Roman empire": ("book", "film", "podcast", "museum"),
    "how old is {}": ("the universe", "my mother's piano", "the Queen of Denmark", "this bridge"),
    "sort these {} by date": ("photos", "invoices", "files", "stamps"),
    "my neighbour's {} has been barking all day": ("dog", "terrier", "puppy", "hound"),
}


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of the ensemble: the cascade's label, level and confidence, and the task's check of the label."""

    label: str
    level: int
    confidence: float
    check: str
    probability: float


def make_pairs(count: int, seed: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return pairs of text and label, and whether the label fits.

    Half of the labels fit, a quarter belong to another intent, and a quarter of the texts have no intent.

    Args:
        count: Number of pairs.
        seed: Seed of the random choices.
    """
    draw = random.Random(seed)
    others = _filled(_SEEN)
    pairs, truth = [], []
    for row, (text, intent) in enumerate(make_examples(count, seed)):
        if row % 2 == 0:
            pairs.append((text, LABELS[intent]))
        elif row % 4 == 1:
            pairs.append((text, draw.choice([label for label in LABELS if label != LABELS[intent]])))
        else:
            pairs.append((draw.choice(others), draw.choice(LABELS)))
        truth.append(DOES_NOT if row % 2 else FITS)
    return pairs, truth


def unseen_texts(each: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return held-out texts: pairs of text and label, alternating between the intents, and texts of no intent.

    Args:
        each: Number of texts per intent.
    """
    seen = {text for seed in (1, 5) for text, _ in make_examples(640, seed=seed)}
    found = {text: LABELS[intent] for text, intent in make_examples(4000, seed=17) if text not in seen}
    texts = [[text for text, label in found.items() if label == wanted] for wanted in LABELS]
    known = [(group[number], label) for number in range(each) for group, label in zip(texts, LABELS, strict=True)]
    others = _filled(_UNSEEN)
    random.Random(3).shuffle(others)
    return known, others


def train_check(repository: Path, model: str, source: Path, done: Callable[[str], None]) -> None:
    """Train the task and add it to a built base unless it exists; see `train_tasks` for the arguments."""
    pairs, truth = make_pairs(640, seed=1)
    train_one(repository, model, source, TASK, "adapter", pairs, truth, done)


def ask(client: Client, text: str) -> Checked:
    """Send one request, which runs through both systems."""
    answer = client.classify(MODEL, text, task=TASK)
    other = answer.other
    check, probability = bytes(other["check"].item()).decode(), float(other["check_probabilities"].max())
    return Checked(answer.label or "", int(other["level"].item()), other["confidence"].item(), check, probability)


def stopped_by_confidence(known: Sequence[Checked], others: Sequence[Checked], passed: int) -> int:
    """Return how many off-topic texts a threshold on the cascade's confidence rejects.

    Args:
        known: Results of texts with an intent.
        others: Results of texts without an intent.
        passed: Number of texts with an intent that the threshold accepts; it is the highest such threshold.
    """
    bound = sorted((each.confidence for each in known), reverse=True)[passed - 1] if passed else math.inf
    return sum(each.confidence < bound for each in others)


def _filled(templates: Mapping[str, Sequence[str]]) -> list[str]:
    return [template.format(word) for template, words in templates.items() for word in words]
