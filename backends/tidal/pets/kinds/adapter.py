"""Adapters: a bottleneck on the outputs of the attention and of the feed-forward part, before residual and LayerNorm.

It reads these outputs (Houlsby et al.), or their sum with the residual after the LayerNorm (Pfeiffer et al.). A task
may have a sparse difference besides: for example a head of two layers, whose first layer replaces the pooler.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from tidal.pets.kinds.diff_pruning import read_difference, write_difference
from tidal.pets.kinds.kind import Kind
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import Activation, Bottleneck, LinearLayer, LinearTerms, SparseDelta
from tidal.tasks.stored import Storage
from tidal.tensor_file import Array

# Stored as indices in this tuple: never reorder.
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "silu")
assert set(ACTIVATIONS) == set(get_args(Activation))
# Names of the layers that write into the residual stream: in BERT and RoBERTa, in DistilBERT.
_AFTER_NORM = "after_norm"
_ADAPTER_LAYERS = ("output.dense", "attention.out_lin", "ffn.lin2")


def accepts_adapter(path: str) -> bool:
    """Whether an adapter may follow a layer.

    Args:
        path: Path of the linear layer.
    """
    return path.endswith(_ADAPTER_LAYERS)


def _read(tensors: LayerTensors) -> LinearTerms:
    bottleneck = _bottleneck(tensors) if tensors.has("down") else None
    return LinearTerms(delta=read_difference(tensors), bottleneck=bottleneck)


def _bottleneck(tensors: LayerTensors) -> Bottleneck:
    if not accepts_adapter(tensors.path):
        raise tensors.refuse(
            "down", f"is at a layer that accepts no adapter; accepted are layers ending in {', '.join(_ADAPTER_LAYERS)}"
        )
    outputs = tensors.linear.shape[0]
    down = tensors.values("down", (None, outputs), "the bottleneck's width and the layer's outputs")
    width = len(down)
    if width > outputs:
        raise tensors.refuse("down", f"has the width {width}; accepted is up to {outputs}")
    codes = tensors.octets("activation")
    if len(codes) != 1 or codes[0] >= len(ACTIVATIONS):
        accepted = ", ".join(f"{code} ({name})" for code, name in enumerate(ACTIVATIONS))
        raise tensors.refuse("activation", f"is {codes.tolist()[:4]}; accepted is one of {accepted}")
    return Bottleneck(
        down,
        tensors.values("down_bias", (width,), "the width of 'down'"),
        tensors.values("up", (outputs, width), "the layer's outputs and the width of 'down'"),
        tensors.values("up_bias", (outputs,), "the layer's outputs"),
        ACTIVATIONS[codes[0]],
        after_norm=_after_norm(tensors),
    )


def _after_norm(tensors: LayerTensors) -> bool:
    if not tensors.has(_AFTER_NORM):
        return False
    codes = tensors.octets(_AFTER_NORM)
    if codes.tolist() not in ([0], [1]):
        raise tensors.refuse(_AFTER_NORM, f"is {codes.tolist()[:4]}; accepted is 0 or 1")
    return bool(codes[0])


def _write(terms: LinearTerms, layer: LinearLayer, storage: Storage) -> dict[str, Array]:
    stored = write_difference(terms, layer, storage)
    if terms.bottleneck is not None:
        for part in ("down", "down_bias", "up", "up_bias"):
            stored[part] = storage.values(getattr(terms.bottleneck, part))
        if terms.bottleneck.after_norm:
            stored[_AFTER_NORM] = np.ones(1, np.uint8)
        stored["activation"] = np.asarray([ACTIVATIONS.index(terms.bottleneck.activation)], np.uint8)
    return stored


KIND = Kind("adapter", "bottleneck adapters (Houlsby, Pfeiffer)", (Bottleneck, SparseDelta), _read, _write)
