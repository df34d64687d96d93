"""Inputs of requests: texts, token ids or images, from files or synthetic."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tidal_client.codec import image_inputs, text_columns
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array

Inputs = Mapping[str, Array]

# In most English tokenizers, each of these words is one token.
_WORDS = """the of and to in is was for on that with as by at from it he be this are or an which his not have had one
year new city world time day people life work house part place week case night water room money story family music
play train book game state school group problem hand area study number name line end member law car body air line"""
# Ids from here on are not special tokens in BERT-like vocabularies.
FIRST_ID = 1000


def text_inputs(texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Inputs]:
    """Return inputs of one row per text.

    Args:
        texts: First texts.
        pairs: Second texts, one per text; None: no pairs.

    Raises:
        InvalidArgument: A text is not valid Unicode, or the numbers of texts and pairs differ.
    """
    columns = text_columns(texts, pairs)
    return [{name: column[row : row + 1] for name, column in columns.items()} for row in range(len(texts))]


def id_inputs(lengths: Sequence[int], vocabulary: int = 30000, *, seed: int = 0) -> list[Inputs]:
    """Return random token ids of given lengths.

    Args:
        lengths: Length of each input in tokens.
        vocabulary: Upper limit of the ids, exclusive.
        seed: Seed; equal seeds give equal ids.

    Raises:
        InvalidArgument: A length is below 1, or the vocabulary is below 2.
    """
    _check(lengths)
    if vocabulary < 2:
        raise InvalidArgument(f"vocabulary: expected at least 2, got {vocabulary}")
    rng = np.random.default_rng(seed)
    lowest = FIRST_ID if vocabulary > 2 * FIRST_ID else 1
    return [{"input_ids": rng.integers(lowest, vocabulary, (1, length), np.int64)} for length in lengths]


def prompt_inputs(inputs: Sequence[Inputs]) -> list[Inputs]:
    """Remove the batch axis: inputs of generation requests have none."""
    return [{name: array.reshape(-1) for name, array in each.items()} for each in inputs]


def image_files(paths: Sequence[Path]) -> list[Inputs]:
    """Return inputs of one image per file.

    Args:
        paths: Image files, or folders whose files are used, except hidden ones.

    Raises:
        InvalidArgument: A path cannot be read, or a folder has no files.
    """
    inputs: list[Inputs] = []
    for path in paths:
        try:
            files = (
                sorted(each for each in path.iterdir() if each.is_file() and each.name[0] != ".")
                if path.is_dir()
                else [path]
            )
            inputs += [image_inputs(file.read_bytes()) for file in files]
        except OSError as error:
            raise InvalidArgument(f"image {path}: cannot be read: {error}") from None
        if not files:
            raise InvalidArgument(f"image {path}: the folder has no files")
    return inputs


def made_images(size: str, count: int, *, seed: int = 0) -> list[Inputs]:
    """Return inputs of random JPEG images.

    Args:
        size: ``WIDTHxHEIGHT`` in pixels, each from 1 to 10,000.
        count: Number of images.
        seed: Seed; equal seeds give equal images.

    Raises:
        InvalidArgument: The size is malformed or out of range.
        ModuleNotFoundError: Pillow is not installed.
    """
    from PIL import Image

    parts = size.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and 1 <= int(part) <= 10_000 for part in parts):
        raise InvalidArgument(f"image size '{size}': expected WIDTHxHEIGHT in pixels, for example 224x224")
    width, height = map(int, parts)
    rng = np.random.default_rng(seed)
    inputs: list[Inputs] = []
    for _ in range(count):
        # Enlarged coarse blocks compress like a photograph; noise would not.
        blocks = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        file = io.BytesIO()
        blocks.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        inputs.append(image_inputs(file.getvalue()))
    return inputs


def made_texts(lengths: Sequence[int], tokenizer: Path | None = None, *, seed: int = 0) -> list[str]:
    """Return random texts of given lengths in words, or with a tokenizer in tokens.

    Args:
        lengths: Length of each text; in tokens, special tokens count, and each text has at least one word.
        tokenizer: Path of a ``tokenizer.json``; None: count words.
        seed: Seed; equal seeds give equal texts.

    Raises:
        InvalidArgument: A length is below 1, or the tokenizer cannot be read.
        ModuleNotFoundError: A tokenizer is given and the package `tokenizers` is not installed.
    """
    _check(lengths)
    words, special = (_WORDS.split(), 0) if tokenizer is None else _single_tokens(tokenizer)
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=max(1, length - special))) for length in lengths]


def read_texts(file: Path) -> list[str]:
    """Return the non-empty lines of a UTF-8 file.

    Raises:
        InvalidArgument: The file cannot be read or has no text.
    """
    try:
        with file.open(encoding="utf-8") as lines:
            texts = [text for line in lines if (text := line.rstrip("\r\n")).strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"texts {file}: cannot be read: {error}") from None
    if not texts:
        raise InvalidArgument(f"texts {file}: the file has no text")
    return texts


def _single_tokens(file: Path) -> tuple[list[str], int]:
    """Return words that are one token each, and the number of special tokens."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise InvalidArgument(f"tokenizer {file}: cannot be read: {error}") from None
    # A tokenizer.json may enable padding or truncation, which would change lengths.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = len(tokenizer.encode("").ids)
    candidates = [word for word in sorted(tokenizer.get_vocab()) if word.isascii() and word.isalpha() and len(word) > 2]
    encoded = tokenizer.encode_batch(candidates)
    words = [word for word, tokens in zip(candidates, encoded, strict=True) if len(tokens.ids) == special + 1]
    if not words:
        raise InvalidArgument(f"tokenizer {file}: no word is a single token")
    return words, special


def _check(lengths: Sequence[int]) -> None:
    if not len(lengths) or min(lengths) < 1:
        raise InvalidArgument("lengths: expected at least one length, each of 1 or more")
