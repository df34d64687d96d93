"""An encoder of BERT's form with random weights, without transformers: for padded rows, and for packed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.recording import Setting
from tidal.engines import Artifact, Engine, Precision, compile_engine, engine_file, open_engines
from tidal.engines.base import Dim

Batch = dict[str, npt.NDArray[Any]]


class EncoderSize(NamedTuple):
    """Sizes of an encoder."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    inner: int = 3072
    vocabulary: int = 30522
    longest: int = 512


BERT_BASE = EncoderSize()
TINY = EncoderSize(2, 32, 2, 64, 100, 64)


class EncoderModule(nn.Module):
    """An encoder with a classification head on the first token."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.longest, size.width)
        self.norm = nn.LayerNorm(size.width, 1e-12)
        self.layers = nn.ModuleList(_Layer(size) for _ in range(size.layers))
        self.head = nn.Linear(size.width, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute logits of rows that are padded at the end.

        Args:
            input_ids: Token ids, [rows, tokens].
            attention_mask: 1 for tokens and 0 for padding, [rows, tokens].
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.norm(self.words(input_ids) + self.positions(positions))
        mask = attention_mask.to(torch.bool)[:, None, None, :]
        rows, tokens, heads = input_ids.shape[0], input_ids.shape[1], self.size.heads
        for module in self.layers:
            layer = cast(_Layer, module)
            qkv = layer.qkv(hidden).view(rows, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
            found = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=mask)
            hidden = layer.rest(hidden, found.transpose(1, 2).reshape(rows, tokens, -1))
        return {"logits": self.head(hidden[:, 0])}

    def packed(self, ids: torch.Tensor, positions: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
        """Compute logits of rows without padding, by torch's attention of variable length.

        Args:
            ids: Token ids of all rows, one after another, [tokens].
            positions: Position of each token in its row, [tokens].
            offsets: First token of each row, and the number of all tokens, [rows + 1].
            longest: Number of tokens of the longest row.

        Returns:
            Logits, [rows, 3].
        """
        hidden = self.norm(self.words(ids) + self.positions(positions))
        heads = self.size.heads

        def nested(values: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest)
            return rows.transpose(1, 2)

        for module in self.layers:
            layer = cast(_Layer, module)
            qkv = layer.qkv(hidden).view(len(ids), 3, heads, -1)
            # The kernels require contiguous rows.
            queries, keys, values = (each.contiguous() for each in qkv.unbind(1))
            found = functional.scaled_dot_product_attention(nested(queries), nested(keys), nested(values))
            hidden = layer.rest(hidden, found.transpose(1, 2).values().reshape(len(ids), -1))
        logits: torch.Tensor = self.head(hidden[offsets[:-1]])
        return logits


class _Layer(nn.Module):
    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.output = nn.Linear(size.width, size.width)
        self.norm1 = nn.LayerNorm(size.width, 1e-12)
        self.inner = nn.Linear(size.width, size.inner)
        self.outer = nn.Linear(size.inner, size.width)
        self.norm2 = nn.LayerNorm(size.width, 1e-12)

    def rest(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Compute what follows attention."""
        hidden = self.norm1(hidden + self.output(attended))
        result: torch.Tensor = self.norm2(hidden + self.outer(functional.gelu(self.inner(hidden))))
        return result


def make_encoder(size: EncoderSize, seed: int = 0) -> EncoderModule:
    """Return an encoder whose random weights are equal for equal seeds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EncoderModule(size).eval().requires_grad_(False)


def size_of(setting: Setting) -> EncoderSize:
    """Size of the encoder that a setting measures."""
    return cast(EncoderSize, setting.choose(BERT_BASE, TINY))


def shapes_of(size: EncoderSize, max_batch: int, length: int | None) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes of the inputs, for one length or for all; None: all."""
    tokens: Dim = (2, size.longest) if length is None else length
    return dict.fromkeys(("input_ids", "attention_mask"), ((1, max_batch), tokens))


def exported(setting: Setting, precision: Precision, max_batch: int) -> Path:
    """Return the encoder's exported program, made by the first step that needs it."""
    size = size_of(setting)
    folder = setting.work(f"encoder-{precision}-{max_batch}")
    path = folder / engine_file("torch")
    if not path.exists():
        shapes = shapes_of(size, max_batch, None)
        compile_engine(
            "torch", make_encoder(size), folder, precision=precision, shapes=shapes, example=batch_of(size, [5, 7, 3])
        )
    return path


def open_encoder(setting: Setting, precision: Precision, *, length: int | None, max_batch: int = 8) -> Engine:
    """Open the encoder as Tidal's torch engine: for one length, or with a dynamic length (None)."""
    path = exported(setting, precision, max_batch)
    shapes = shapes_of(size_of(setting), max_batch, length)
    return open_engines(Artifact("torch", path, precision, shapes, setting.device), threads=1)[0]


def batch_of(size: EncoderSize, lengths: list[int], padded: int | None = None, seed: int = 0) -> Batch:
    """Return random rows of these lengths, padded to the longest or to `padded`."""
    width = padded or max(lengths)
    ids = np.random.default_rng(seed).integers(0, size.vocabulary, (len(lengths), width))
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}


def tweet_like_lengths(count: int, longest: int, seed: int) -> list[int]:
    """Return lengths of tweets, stretched so that the longest of 125 tokens has `longest`: most are short.

    A lognormal with the median (21) and 98th percentile (72) of the recalibrated trace (Arlo §5), as no data is here.
    """
    drawn = np.random.default_rng(seed).lognormal(np.log(21), 0.6, count) * longest / 125
    return [int(tokens) for tokens in np.clip(np.round(drawn), 2, longest)]
