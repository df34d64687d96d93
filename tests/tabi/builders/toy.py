"""Levels that are functions of the text, so that tests can compute the effect of pruning."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tidal.text.words import WordTokenizer
from tidal_builders.tabi.data import CollectedLevel, LabelledData, LevelOutputs

Texts = Sequence[tuple[str, ...]]

WORDS = tuple(f"w{number}" for number in range(120))
# Every fourth word determines the label; the others only add latency.
MEANINGFUL = np.arange(len(WORDS)) % 4 == 0
# Arguments of a `Toy` whose levels, above all the first, are more confident than right.
OVERCONFIDENT: dict[str, Any] = {"noise": (0.4, 0.1), "base_ms": (1.0, 5.0), "gain": (6.0, 15.0)}


def tokenizer_of(folder: Path, max_length: int = 64) -> WordTokenizer:
    """Return a tokenizer with one token per word."""
    special = ("[UNK]", "[CLS]", "[SEP]")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate((*special, *WORDS))}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    file = folder / "tokenizer.json"
    words.save(str(file))
    return WordTokenizer(file, max_length, truncate=True)


@dataclass
class Toy:
    """Levels with given noise (a classifier's mistakes) and latency; `calls` lists the reruns.

    Args:
        noise: Noise of each level's logits.
        base_ms: Latency of each level for an empty text, milliseconds; every word adds a tenth.
        classes: Number of classes; 1 makes it a regression.
        gain: Factor of each level's logits; above 1 the level is overconfident.
        attention: Whether each level gives the importance of tokens.
    """

    noise: tuple[float, ...]
    base_ms: tuple[float, ...]
    classes: int = 3
    gain: tuple[float, ...] = ()
    attention: tuple[bool, ...] = ()
    seed: int = 0
    calls: list[tuple[int, tuple[tuple[str, ...], ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        self.meaning = generator.normal(size=(len(WORDS), self.classes)) * np.where(MEANINGFUL, 1.0, 0.02)[:, None]

    def data(self, count: int, *, pairs: bool = False) -> LabelledData:
        generator = np.random.default_rng(self.seed + 1)
        texts = []
        for _ in range(count):
            parts = [" ".join(generator.choice(WORDS, generator.integers(4, 16))) for _ in range(1 + pairs)]
            texts.append(tuple(parts))
        sums = np.array([self._meaning(text) for text in texts])
        truth = sums[:, 0] if self.classes == 1 else sums.argmax(axis=1)
        return LabelledData(tuple(texts), truth, generator.choice(3, count, p=(0.25, 0.25, 0.5)).astype(np.int8))

    def facts(self, data: LabelledData, tokenizer: WordTokenizer) -> list[CollectedLevel]:
        return [CollectedLevel(f"level{i}", self.outputs(i, data.texts), tokenizer) for i in range(len(self.noise))]

    def outputs(self, level: int, texts: Texts) -> LevelOutputs:
        logits, importance, latency = [], [], []
        gain = self.gain[level] if self.gain else 1.0
        for text in texts:
            generator = np.random.default_rng(zlib.crc32(repr((level, text, self.seed)).encode()))
            logits.append(gain * (self._meaning(text) + self.noise[level] * generator.normal(size=self.classes)))
            received = [5.0]
            for part in text:
                strength = np.abs(self.meaning[_numbers(part)]).mean(axis=1)
                received += [*(0.5 + strength + 0.1 * generator.random(len(strength))), 5.0]
            importance.append(np.array(received, np.float32))
            words = sum(len(part.split()) for part in text)
            latency.append(self.base_ms[level] * (1 + words / 10) * (1 + 0.05 * generator.random()))
        gives = self.attention[level] if self.attention else True
        return LevelOutputs(
            np.array(logits, np.float32).reshape(len(texts), self.classes),
            tuple(importance) if gives else None,
            np.array(latency),
        )

    def rerun(self, level: int, texts: Texts, /) -> LevelOutputs:
        self.calls.append((level, tuple(texts)))
        return self.outputs(level, texts)

    def _meaning(self, text: tuple[str, ...]) -> np.ndarray:
        return sum(self.meaning[_numbers(part)].sum(axis=0) for part in text)


def _numbers(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]
