"""A task that reads a text and a label as a pair: what the ensemble `text_to_checked_label` asks after the cascade.

A classifier of eight intents names one of them whatever it is asked. The task learned which texts a label fits, also
from texts of no intent at all, so it says where the cascade had no right label to choose.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.tasks import train_one
from demo.texts import LABELS, make_examples
from tidal_client import Client

MODEL, TASK = "text_to_checked_label", "fits"
FITS, DOES_NOT = "fits", "does not fit"
# Texts of no intent: those that the task is trained with, and others that it is asked about.
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
    """What the ensemble answered: the cascade's label, level and confidence, and what the task says of the label."""

    label: str
    level: int
    confidence: float
    check: str
    probability: float


def make_pairs(count: int, seed: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Texts with a label each, and whether it fits: half do, a quarter have another intent's, a quarter have none."""
    draw = random.Random(seed)
    others = _filled(_SEEN)
    pairs, truth = [], []
    for place, (text, intent) in enumerate(make_examples(count, seed)):
        if place % 2 == 0:
            pairs.append((text, LABELS[intent]))
        elif place % 4 == 1:
            pairs.append((text, draw.choice([label for label in LABELS if label != LABELS[intent]])))
        else:
            pairs.append((draw.choice(others), draw.choice(LABELS)))
        truth.append(DOES_NOT if place % 2 else FITS)
    return pairs, truth


def unseen_texts(each: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Texts that no training saw: so many of each intent with its label, the intents in turn, and some of none."""
    seen = {text for seed in (1, 5) for text, _ in make_examples(640, seed=seed)}
    found = {text: LABELS[intent] for text, intent in make_examples(4000, seed=17) if text not in seen}
    texts = [[text for text, label in found.items() if label == wanted] for wanted in LABELS]
    known = [(group[turn], label) for turn in range(each) for group, label in zip(texts, LABELS, strict=True)]
    others = _filled(_UNSEEN)
    random.Random(3).shuffle(others)
    return known, others


def train_check(repository: Path, model: str, source: Path, done: Callable[[str], None]) -> None:
    """Train the task and add it to a built base, unless it is there; arguments as of `train_tasks`."""
    pairs, truth = make_pairs(640, seed=1)
    train_one(repository, model, source, TASK, "adapter", pairs, truth, done)


def ask(client: Client, text: str) -> Checked:
    """One request, for which the server runs both systems."""
    answer = client.classify(MODEL, text, task=TASK)
    other = answer.other
    check, probability = bytes(other["check"].item()).decode(), float(other["check_probabilities"].max())
    return Checked(answer.label or "", int(other["level"].item()), other["confidence"].item(), check, probability)


def stopped_by_confidence(known: Sequence[Checked], others: Sequence[Checked], passed: int) -> int:
    """How many of the `others` a bound on the cascade's own confidence stops: the highest that lets so many pass."""
    bound = sorted((each.confidence for each in known), reverse=True)[passed - 1] if passed else math.inf
    return sum(each.confidence < bound for each in others)


def _filled(templates: dict[str, Sequence[str]]) -> list[str]:
    return [template.format(word) for template, words in templates.items() for word in words]
