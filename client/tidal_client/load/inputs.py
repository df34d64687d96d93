"""What requests carry: texts, token ids or images, from files or made to wanted lengths and sizes."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tidal_client.codec import chunks, image_inputs
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array

Inputs = Mapping[str, Array]

# Most tokenizers of English have each of these as one token.
_WORDS = """the of and to in is was for on that with as by at from it he be this are or an which his not have had one
year new city world time day people life work house part place week case night water room money story family music
play train book game state school group problem hand area study number name line end member law car body air line"""
# Ids from here on are no special tokens in vocabularies of BERT's kind.
FIRST_ID = 1000


def text_inputs(texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Inputs]:
    """Inputs of one row for each text.

    Raises:
        InvalidArgument: a text that is not valid Unicode, or not one pair for each text.
    """
    return [
        {name: column[row : row + 1] for name, column in chunk.items()}
        for chunk in chunks(texts, pairs)
        for row in range(len(chunk["text_input"]))
    ]


def id_inputs(lengths: Sequence[int], vocabulary: int = 30000, *, seed: int = 0) -> list[Inputs]:
    """Random token ids of exactly these lengths, every one different.

    Args:
        lengths: tokens of each input.
        vocabulary: ids are below this.
        seed: equal seeds give equal ids.

    Raises:
        InvalidArgument: a length below 1 or a vocabulary that is empty.
    """
    _check(lengths)
    if vocabulary < 2:
        raise InvalidArgument(f"vocabulary: expected at least 2, got {vocabulary}")
    rng = np.random.default_rng(seed)
    lowest = FIRST_ID if vocabulary > 2 * FIRST_ID else 1
    return [{"input_ids": rng.integers(lowest, vocabulary, (1, length), np.int64)} for length in lengths]


def prompt_inputs(inputs: Sequence[Inputs]) -> list[Inputs]:
    """The same texts or ids as inputs of generations, which have no batch axis."""
    return [{name: array.reshape(-1) for name, array in each.items()} for each in inputs]


def image_files(paths: Sequence[Path]) -> list[Inputs]:
    """Inputs of one image for each file; of a folder, for each file in it that is no hidden one.

    Raises:
        InvalidArgument: a path that cannot be read, or a folder without files.
    """
    found: list[Inputs] = []
    for path in paths:
        try:
            files = (
                sorted(each for each in path.iterdir() if each.is_file() and each.name[0] != ".")
                if path.is_dir()
                else [path]
            )
            found += [image_inputs(file.read_bytes()) for file in files]
        except OSError as error:
            raise InvalidArgument(f"image {path}: cannot be read: {error}") from None
        if not files:
            raise InvalidArgument(f"image {path}: no file in this folder")
    return found


def made_images(size: str, count: int, *, seed: int = 0) -> list[Inputs]:
    """Inputs of random images, JPEG files that are all different.

    Args:
        size: ``WIDTHxHEIGHT`` in pixels.
        count: how many.
        seed: equal seeds give equal images.

    Raises:
        InvalidArgument: a size that reads otherwise, or is not from 1 to 10,000 pixels each way.
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
        # A few coarse blocks, enlarged: files of a photograph's size rather than of noise.
        blocks = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        file = io.BytesIO()
        blocks.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        inputs.append(image_inputs(file.getvalue()))
    return inputs


def made_texts(lengths: Sequence[int], tokenizer: Path | None = None, *, seed: int = 0) -> list[str]:
    """Texts of wanted lengths: in words, or in tokens when a tokenizer says which words are one token.

    Args:
        lengths: of each text; with a tokenizer special tokens are counted, and a text has at least one word.
        tokenizer: a ``tokenizer.json``.
        seed: equal seeds give equal texts.

    Raises:
        InvalidArgument: a length below 1, or a tokenizer that cannot be read.
        ModuleNotFoundError: a tokenizer is given and the package `tokenizers` is not installed.
    """
    _check(lengths)
    words, special = (_WORDS.split(), 0) if tokenizer is None else _single_tokens(tokenizer)
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=max(1, length - special))) for length in lengths]


def read_texts(file: Path) -> list[str]:
    """The lines of a UTF-8 file, empty ones left out.

    Raises:
        InvalidArgument: a file that cannot be read, or has no text.
    """
    try:
        with file.open(encoding="utf-8") as lines:
            texts = [text for line in lines if (text := line.rstrip("\r\n")).strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"texts {file}: cannot be read: {error}") from None
    if not texts:
        raise InvalidArgument(f"texts {file}: no text in it")
    return texts


def _single_tokens(file: Path) -> tuple[list[str], int]:
    """Words that are one token each, and the number of tokens of an empty text."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise InvalidArgument(f"tokenizer {file}: cannot be read: {error}") from None
    # A tokenizer.json may ask for padding or truncation, which would hide lengths.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = len(tokenizer.encode("").ids)
    candidates = [word for word in sorted(tokenizer.get_vocab()) if word.isascii() and word.isalpha() and len(word) > 2]
    encoded = tokenizer.encode_batch(candidates)
    words = [word for word, tokens in zip(candidates, encoded, strict=True) if len(tokens.ids) == special + 1]
    if not words:
        raise InvalidArgument(f"tokenizer {file}: no word of it is one token")
    return words, special


def _check(lengths: Sequence[int]) -> None:
    if not len(lengths) or min(lengths) < 1:
        raise InvalidArgument("lengths: expected at least one, all 1 or more")
