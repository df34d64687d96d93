"""Generates English text, for models whose spec names no samples."""

from __future__ import annotations

import random

_ASIDES = "|Honestly, |However, |Is it true that |Please note: |No, "
_WHO = "I|my sister|the manager|our neighbour|every customer|nobody here|the new driver|a tired doctor"
_DID = "booked|cancelled|forgot|recommended|returned|paid for|asked about|complained about|really enjoyed|lost"
_WHAT = (
    "a flight to Lisbon|the second ticket|this terrible film|a table for six|the monthly invoice|an old recipe|"
    "the phone contract|two boxes of oranges|that brilliant concert|a hotel near the station"
)
_WHEN = (
    "yesterday|on Monday at 7:30|before the rain began|for $42.50|without saying why|after all|in 2019|"
    "because it was cheaper|although it hardly worked|and would do so again"
)
_ENDS = ".|.|.|.|.|.|?|!"


def make_texts(count: int, seed: int) -> list[str]:
    """Generate sentences with names, numbers and punctuation; equal seeds give equal sentences."""
    draw = random.Random(seed)
    parts = [part.split("|") for part in (_ASIDES, _WHO, _DID, _WHAT, _WHEN, _ENDS)]

    def sentence() -> str:
        aside, who, did, what, when, end = (draw.choice(choices) for choices in parts)
        return f"{aside}{who} {did} {what} {when}{end}"

    return [sentence() for _ in range(count)]
