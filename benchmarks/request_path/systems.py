"""Requests for each system, with unique inputs; caches are off."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.request_path import models
from benchmarks.request_path.load import Requests
from benchmarks.texts import TextMaker

# Requests of a round; a longer measurement sends them again.
COUNT = 4096
#: Tokens of a generation; each is a part of the answer.
TOKENS = 32
_SHORT = 10

# Makes the requests of a round from its seed.
MakeRequests = Callable[[int], Requests]


def texts(model: str, tokenizer: Path, lengths: Callable[[np.random.Generator], int]) -> MakeRequests:
    """Return what makes requests of one text each.

    Args:
        model: Name of the model.
        tokenizer: File of its tokenizer.
        lengths: Draws the number of tokens of a text.
    """

    def make(seed: int) -> Requests:
        maker, draw = TextMaker(tokenizer, seed), np.random.default_rng(seed)
        return Requests(model, [{"text_input": [maker.text(lengths(draw))]} for _ in range(COUNT)])

    return make


def short(draw: np.random.Generator) -> int:
    """Return 10 tokens."""
    return _SHORT


def mixed(draw: np.random.Generator) -> int:
    """Return 8 to 200 tokens, uniformly distributed."""
    return int(draw.integers(8, 201))


def lone(draw: np.random.Generator) -> int:
    """Return 25 tokens."""
    return 25


def system_requests(system: str, sources: Path) -> MakeRequests:
    """Return what makes requests for a tiny model of `models`.

    Args:
        system: Name of the model.
        sources: Folder that the models were built from.
    """
    short_texts = texts(system, sources / "classifier" / "tokenizer.json", short)

    def make(seed: int) -> Requests:
        if system == models.OTAS:
            return Requests(system, [{"image": {"b64": each}} for each in _images(seed)], {"task": models.TASK})
        rows = short_texts(seed).rows
        if system == models.PETS:
            return Requests(system, rows, {"task": models.TASK})
        if system == models.FLOVER:
            streamed = [
                {**{name: {"content": value, "shape": [1]} for name, value in row.items()}, **_STREAM} for row in rows
            ]
            return Requests(system, streamed, {"max_tokens": TOKENS}, streamed=True)
        return Requests(system, rows)

    return make


_STREAM = {"stream": {"content": [True], "shape": [1]}}


def _images(seed: int) -> list[str]:
    """Return PNG images in base64, with the length that perf_analyzer expects before each."""
    from PIL import Image

    draw, found = np.random.default_rng(seed), []
    for _ in range(COUNT // 4):
        stream = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(stream, "PNG", compress_level=1)
        content = stream.getvalue()
        found.append(base64.b64encode(struct.pack("<I", len(content)) + content).decode())
    return found
