"""Intent texts generated from templates and fillers, so that the demo needs no dataset."""

from __future__ import annotations

import random
from pathlib import Path

_FILLERS = {
    "city": ["Berlin", "Osaka", "Lagos", "Lima", "Toronto", "Oslo", "Cairo", "Austin"],
    "day": ["tomorrow", "on Friday", "next Monday", "this weekend", "tonight", "in two weeks"],
    "time": ["at seven", "at noon", "at half past eight", "before ten", "around six"],
    "food": ["pizza", "sushi", "a vegetarian lunch", "Italian food", "noodles", "something spicy"],
    "song": ["some jazz", "the new Adele album", "my workout playlist", "a Beatles song", "piano music"],
    "person": ["my sister", "Ahmed", "the landlord", "Dr. Sato", "my manager", "Lena"],
    "amount": ["50 dollars", "two hundred euros", "the rent", "30 pounds", "my share of the bill"],
    "device": ["the kitchen lights", "the heating", "the bedroom lamp", "the garage door", "the fan"],
    "polite": ["please ", "could you ", "I would like you to ", "hey, ", "", "can you "],
    "tail": ["", " thanks", " if that is possible", " for the two of us", " and let me know", " as soon as you can"],
}

_TEMPLATES = {
    "book_flight": [
        "{polite}book a flight to {city} {day}{tail}",
        "{polite}find me a plane ticket from {city} to {city} {day}",
        "I need to fly to {city} {day}{tail}",
        "are there any cheap flights to {city} {day}",
    ],
    "book_restaurant": [
        "{polite}reserve a table {day} {time}{tail}",
        "{polite}find a restaurant in {city} that serves {food}",
        "I want to eat {food} {day}, book a place for us{tail}",
        "is there a free table {time} {day} anywhere near here",
    ],
    "weather": [
        "what will the weather be like in {city} {day}",
        "do I need an umbrella {day} in {city}",
        "will it rain {day}",
        "how cold does it get in {city} {day}",
    ],
    "play_music": [
        "{polite}play {song}{tail}",
        "put on {song} in the living room",
        "I feel like listening to {song} now",
        "next track, and then {song}",
    ],
    "set_alarm": [
        "{polite}wake me up {time} {day}",
        "set an alarm for {time}{tail}",
        "remind me {time} {day} to call {person}",
        "{polite}cancel the alarm {time}",
    ],
    "send_message": [
        "{polite}tell {person} that I will be late{tail}",
        "send a message to {person} saying happy birthday",
        "text {person} that the meeting moved to {day}",
        "{polite}write to {person} and ask how the trip was",
    ],
    "transfer_money": [
        "{polite}send {amount} to {person}{tail}",
        "transfer {amount} from my savings account {day}",
        "pay {person} {amount}",
        "I owe {person} {amount}, settle it {day}",
    ],
    "smart_home": [
        "{polite}turn off {device}{tail}",
        "switch {device} on {time}",
        "is {device} still on",
        "{polite}dim {device} a little",
    ],
}

LABELS = tuple(_TEMPLATES)
#: Kinds of fillers that are entities.
ENTITIES = ("amount", "city", "day", "device", "food", "person", "song", "time")
CITIES = tuple(_FILLERS["city"])

# Words that lengthen a query without changing its intent, to show latency by length.
_SMALL_TALK = (
    "I have been meaning to ask for a while now because the week was long and busy and there was hardly a quiet "
    "moment between one thing and the next so I am glad to get it done at last before I forget about it again "
)


def make_examples(count: int, seed: int) -> list[tuple[str, int]]:
    """Return `count` pairs of text and label index; equal seeds give equal texts."""
    rng = random.Random(seed)
    examples = []
    for index in range(count):
        label = index % len(LABELS)
        template = rng.choice(_TEMPLATES[LABELS[label]])
        text = template
        while "{" in text:
            start, end = text.index("{"), text.index("}")
            text = text[:start] + rng.choice(_FILLERS[text[start + 1 : end]]) + text[end + 1 :]
        examples.append((text, label))
    rng.shuffle(examples)
    return examples


def make_marked_examples(count: int, seed: int) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """Return texts with their fillers: first character, end and kind; kinds are those of `ENTITIES`."""
    rng = random.Random(seed)
    templates = [template for group in _TEMPLATES.values() for template in group]
    examples = []
    for _ in range(count):
        template = rng.choice(templates)
        text, rest, marks = "", template, []
        while "{" in rest:
            before, _, rest = rest.partition("{")
            kind, _, rest = rest.partition("}")
            text += before
            filler = rng.choice(_FILLERS[kind])
            if kind in ENTITIES:
                marks.append((len(text), len(text) + len(filler), kind))
            text += filler
        examples.append((text + rest, marks))
    return examples


def lengthen(text: str, words: int) -> str:
    """Return `text` with small talk before it, about `words` words in total."""
    talk = (_SMALL_TALK.split() * (words // 30 + 2))[: max(0, words - len(text.split()))]
    return " ".join([*talk, text])


def write_labelled(target: Path, count: int, seed: int) -> None:
    """Write examples in the format for labelled texts: a header, then a text and its label per line, tab-separated."""
    rows = "".join(f"{text}\t{LABELS[label]}\n" for text, label in make_examples(count, seed))
    target.write_text(f"text\tlabel\n{rows}", encoding="utf-8")
