"""The measured decoder: GPT-2 small's size with random weights, and a tokenizer with a vocabulary of that size."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

_END = "<end>"
# Factor on GPT-2's initial position embeddings. A random decoder soon repeats one token; larger position embeddings
# keep the text changing, and make a wrong position visible.
_POSITIONS = 10.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int


GPT2_SMALL = Shape(layers=12, width=768, heads=12, vocabulary=50_257, positions=1024)
TINY = Shape(layers=2, width=64, heads=4, vocabulary=400, positions=256)


def write_source(folder: Path, shape: Shape) -> None:
    """Write model and tokenizer in Hugging Face format; the same shape gives the same files."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.positions,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        # Only the requested length ends a text.
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
        with torch.no_grad():
            model.transformer.wpe.weight.mul_(_POSITIONS)
    model.save_pretrained(folder)
    write_tokenizer(folder, shape.vocabulary)


def write_tokenizer(folder: Path, tokens: int) -> None:
    """Write a byte-level tokenizer of `tokens` tokens: the 256 bytes, then groups of two and three ASCII characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    signs = sorted(sign for sign in alphabet if sign.isascii() and sign.isprintable())
    pairs = [(first, second) for first in signs for second in signs]
    triples = ((f"{first}{second}", third) for (first, second), third in itertools.product(pairs, signs))
    merges = list(itertools.islice(itertools.chain(pairs, triples), max(0, tokens - len(alphabet) - 1)))
    words = [*alphabet, *(f"{first}{second}" for first, second in merges)]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=_END, eos_token=_END).save_pretrained(folder)


def open_source(folder: Path, precision: str) -> GPT2LMHeadModel:
    """Open the model with transformers, in `fp32` or `bf16`."""
    import torch
    from transformers import GPT2LMHeadModel

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model: GPT2LMHeadModel = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype)
    return model.eval()


def read_positions(folder: Path) -> int:
    """Return the maximum length of a sequence, in tokens."""
    return int(json.loads((folder / "config.json").read_text())["n_positions"])
