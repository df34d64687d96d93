"""A task's full model in unmodified `transformers`, merged into a copy of the weights: the reference for answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from tidal.errors import Unsupported
from tidal.pets.merging import dense
from tidal.pets.terms import Bottleneck, FloatArray, TaskTerms

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.nn.functional.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
}  # fmt: skip

# The normalisation after a layer of DistilBERT, by the layer's name.
_DISTILBERT_NORMS = {"out_lin": "sa_layer_norm", "lin2": "output_layer_norm"}


def merged_classifier(source: str | Path, terms: TaskTerms) -> Any:
    """Load `AutoModelForSequenceClassification` of a base and merge a task into it, in evaluation mode.

    Adapters cannot be weights of such a model: they are forward hooks.

    Args:
        source: Hugging Face id or folder of the base.
        terms: Terms of the task.

    Raises:
        Unsupported: The model's classifier is not one linear layer on the pooled vector.
    """
    from transformers import AutoModelForSequenceClassification

    labels = terms.head.labels
    model = AutoModelForSequenceClassification.from_pretrained(
        source,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        ignore_mismatched_sizes=True,
    )
    head = getattr(model, "classifier", None)
    if not isinstance(head, torch.nn.Linear):
        raise Unsupported(f"{type(model).__name__} has no classifier of one linear layer that a task could replace")
    merge_terms(model.base_model, terms)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(terms.head.weight))
        head.bias.copy_(torch.from_numpy(terms.head.bias))
    return model.eval()


@torch.no_grad()
def merge_terms(encoder: Module, terms: TaskTerms) -> None:
    """Change an encoder's weights to a task's, except the classifier.

    Args:
        encoder: Encoder of transformers; it is changed.
        terms: Terms of the task.
    """
    for path, own in terms.linear.items():
        layer = encoder.get_submodule(path)
        weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
        if own.delta is not None:
            weight.add_(torch.from_numpy(dense(own.delta, (weight.shape[0], weight.shape[1]))))
        if own.bias is not None:
            bias.add_(torch.from_numpy(own.bias))
        if own.bottleneck is not None and own.bottleneck.after_norm:
            after = encoder.get_submodule(norm_after(path))
            after.register_forward_pre_hook(_after_norm(after, own.bottleneck))
        elif own.bottleneck is not None:
            layer.register_forward_hook(_bottleneck(own.bottleneck))
    for path, norm in terms.norm.items():
        layer = encoder.get_submodule(path)
        layer.get_parameter("weight").copy_(torch.from_numpy(norm.weight))
        layer.get_parameter("bias").copy_(torch.from_numpy(norm.bias))


def _bottleneck(terms: Bottleneck) -> Any:
    adapter = _adapter(terms)
    return lambda _module, _inputs, output: output + adapter(output)


def _after_norm(norm: Module, terms: Bottleneck) -> Any:
    adapter = _adapter(terms)

    def add(_: Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (total,) = inputs  # `forward`, because a call would run this hook again
        return (total + adapter(norm.forward(total)),)

    return add


def _adapter(terms: Bottleneck) -> Callable[[torch.Tensor], torch.Tensor]:
    down, down_bias, up, up_bias = (_tensor(getattr(terms, part)) for part in ("down", "down_bias", "up", "up_bias"))
    activation = _ACTIVATIONS[terms.activation]

    def changed(source: torch.Tensor) -> torch.Tensor:
        inner = activation(torch.nn.functional.linear(source, down, down_bias))
        return torch.nn.functional.linear(inner, up, up_bias)

    return changed


def norm_after(path: str) -> str:
    """Path of the normalisation that follows a layer and its residual sum."""
    around, _, last = path.rpartition(".")
    if last == "dense":
        return f"{around}.LayerNorm"
    block, _, _ = around.rpartition(".")
    return f"{block}.{_DISTILBERT_NORMS[last]}"


def _tensor(array: FloatArray) -> torch.Tensor:
    return torch.from_numpy(array)
