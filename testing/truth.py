"""The truth about a task: its own copy of the unmodified `transformers` model, weights edited, adapters by hooks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tidal.pets.terms import (
    BaseLayers,
    Bottleneck,
    FloatArray,
    Head,
    LinearTerms,
    LowRankDelta,
    NormTerms,
    SparseDelta,
    TaskTerms,
)

KINDS = ("sparse", "rare", "low_rank", "bias", "bottleneck", "norm", "head", "everything", "after_norm")
# The normalisation of the sum of a layer's outputs and the residual, by how the layer's path ends.
_NORM_AFTER = {
    "output.dense": "output.LayerNorm", "attention.out_lin": "sa_layer_norm", "ffn.lin2": "output_layer_norm",
}  # fmt: skip
_SIGMA = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}


@dataclass
class Exported:
    """A tiny encoder, the folder that it was exported to, and its layers."""

    model: Any
    folder: Path
    layers: BaseLayers


def randomise(model: Any, seed: int) -> Any:
    """Fill all weights so that every layer matters; returns the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.25)
            if "norm.weight" in name.lower():
                weight.add_(1.0)
    return model.eval()


def random_terms(kind: str, layers: BaseLayers, seed: int) -> TaskTerms:
    """A task with one type of term at every layer that can have it, or with `everything`; two to five classes."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int, scale: float = 0.2) -> FloatArray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    linear, norm = {}, {}
    for path, layer in layers.linear.items():
        outputs, inputs = layer.shape
        delta: SparseDelta | LowRankDelta | None = None
        if kind in ("sparse", "rare"):
            delta = _sparse(rng, outputs, inputs, 0.1 if kind == "sparse" else 0.004)
        elif kind == "low_rank" or (kind == "everything" and rng.random() < 0.5):
            rank = int(rng.integers(1, 20))
            delta = LowRankDelta(floats(rank, inputs), floats(outputs, rank), float(rng.uniform(0.2, 2)))
        elif kind == "everything":
            delta = _sparse(rng, outputs, inputs, 0.3)
        bottleneck = None
        after_norm = norm_after(path) is not None and (
            kind == "after_norm" or (kind == "everything" and rng.random() < 0.5)
        )
        if after_norm or (kind in ("bottleneck", "everything") and rng.random() < 0.7):
            width = int(rng.integers(1, 40))
            sigma: Any = str(rng.choice(sorted(_SIGMA)))
            down, up = floats(width, outputs), floats(outputs, width)
            bottleneck = Bottleneck(down, floats(width), up, floats(outputs), sigma, after_norm)
        bias = floats(outputs) if kind in ("bias", "everything") else None
        if delta is not None or bias is not None or bottleneck is not None:
            linear[path] = LinearTerms(delta, bias, bottleneck)
    if kind in ("norm", "everything"):
        norm = {path: NormTerms(1 + floats(len(e.weight)), floats(len(e.bias))) for path, e in layers.norm.items()}
    classes = int(rng.integers(2, 6))
    head = Head(floats(classes, layers.width), floats(classes), tuple(f"class {i}" for i in range(classes)))
    return TaskTerms(head, linear, norm)


def norm_after(path: str) -> str | None:
    """Path of the normalisation after a layer and its residual sum; None if the layer has none."""
    return next((path.removesuffix(end) + norm for end, norm in _NORM_AFTER.items() if path.endswith(end)), None)


def _sparse(rng: np.random.Generator, outputs: int, inputs: int, density: float) -> SparseDelta:
    # Rows of very different lengths, empty ones among them.
    mask = rng.random((outputs, inputs)) < density * rng.choice([0, 1, 4], (outputs, 1))
    starts = np.concatenate([[0], mask.sum(1).cumsum()]).astype(np.uint32)
    columns = np.nonzero(mask)[1].astype(np.uint16)
    return SparseDelta(starts, columns, (rng.standard_normal(len(columns)) * 0.2).astype(np.float32))


class Truth:
    """One task's own model."""

    def __init__(self, model: Any, terms: TaskTerms) -> None:
        self.model, self.head = copy.deepcopy(model), terms.head
        modules = {**dict(self.model.named_modules()), **dict(self.model.base_model.named_modules())}
        with torch.no_grad():
            for path, own in terms.linear.items():
                self._change(modules[path], own, modules.get(norm_after(path) or ""))
            for path, affine in terms.norm.items():
                modules[path].weight.copy_(torch.from_numpy(affine.weight))
                modules[path].bias.copy_(torch.from_numpy(affine.bias))

    @staticmethod
    def _change(module: Any, own: LinearTerms, norm: Any) -> None:
        if isinstance(own.delta, LowRankDelta):
            module.weight.add_(torch.from_numpy(own.delta.scale * own.delta.up @ own.delta.down))
        elif own.delta is not None:
            for row, (begin, end) in enumerate(zip(own.delta.starts[:-1], own.delta.starts[1:], strict=True)):
                for column, value in zip(own.delta.columns[begin:end], own.delta.values[begin:end], strict=True):
                    module.weight[row, int(column)] += float(value)
        if own.bias is not None:
            module.bias.add_(torch.from_numpy(own.bias))
        if (adapter := own.bottleneck) is not None:
            down, up = torch.from_numpy(adapter.down), torch.from_numpy(adapter.up)
            down_bias, up_bias = torch.from_numpy(adapter.down_bias), torch.from_numpy(adapter.up_bias)
            sigma = _SIGMA[adapter.activation]

            def add(of: torch.Tensor) -> torch.Tensor:
                changed: torch.Tensor = sigma(of @ down.T + down_bias) @ up.T + up_bias
                return changed

            if adapter.after_norm:  # `forward`: a call would run the hook again
                norm.register_forward_pre_hook(lambda _, given: (given[0] + add(norm.forward(given[0])),))
            else:
                module.register_forward_hook(lambda _, __, y: y + add(y))

    def hidden(self, ids: list[int], types: list[int] | None = None) -> FloatArray:
        """The last hidden states [tokens, width] of one row without padding."""
        states: FloatArray = self._encoded(ids, types).last_hidden_state[0].numpy()
        return states

    def _encoded(self, ids: list[int], types: list[int] | None) -> Any:
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if types is not None:
            inputs["token_type_ids"] = torch.tensor([types])
        with torch.no_grad():
            return self.model.base_model(**inputs)

    def pooled(self, ids: list[int], types: list[int] | None = None) -> FloatArray:
        """The pooled vector [width] of one row without padding."""
        with torch.no_grad():
            found = self._encoded(ids, types)
            if getattr(found, "pooler_output", None) is not None:
                pooled = found.pooler_output
            else:
                pooled = found.last_hidden_state[:, 0]
                if hasattr(self.model, "pre_classifier"):
                    pooled = torch.relu(self.model.pre_classifier(pooled))
        vector: FloatArray = pooled[0].numpy()
        return vector

    def logits(self, ids: list[int], types: list[int] | None = None) -> FloatArray:
        """The task's logits [classes] for one row without padding."""
        found: FloatArray = self.head.weight @ self.pooled(ids, types) + self.head.bias
        return found


def attention_received(truth: Truth, ids: list[int]) -> FloatArray:
    """What each token of one row without padding gets of all layers, heads and queries, [length]."""
    model = truth.model.base_model
    model.set_attn_implementation("eager")  # the only way that shows the attention weights
    with torch.no_grad():
        found = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    received: FloatArray = torch.stack(found).sum(dim=(0, 1, 2, 3)).numpy()
    return received
