"""Expected answers of a task: an unmodified transformers model with the task's terms applied to its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from tidal.pets.merging import dense
from tidal.pets.terms import BaseLayers, Bottleneck, FloatArray, TaskTerms

_ACTIVATIONS = {"relu": torch.nn.functional.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
IDS = torch.tensor([[2, 70, 80, 90, 3], [2, 75, 3, 0, 0]])
MASK = (IDS != 0).long()


def answer(folder: Path, terms: TaskTerms, base: BaseLayers) -> FloatArray:
    """Logits [2, classes] of the task on `IDS`; `folder` holds the base with any head of one layer."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    modules = dict(model.base_model.named_modules())
    with torch.no_grad():
        for path, change in terms.linear.items():
            if change.delta is not None:
                modules[path].weight += torch.from_numpy(dense(change.delta, base.linear[path].shape))
            if change.bias is not None:
                modules[path].bias += torch.from_numpy(change.bias)
            if change.bottleneck is not None:
                modules[path].register_forward_hook(_hook(change.bottleneck))
        for path, norm in terms.norm.items():
            modules[path].weight.copy_(torch.from_numpy(norm.weight))
            modules[path].bias.copy_(torch.from_numpy(norm.bias))
        model.classifier = torch.nn.Linear(base.width, len(terms.head.labels))
        model.classifier.weight.copy_(torch.from_numpy(terms.head.weight))
        model.classifier.bias.copy_(torch.from_numpy(terms.head.bias))
        return logits(model)


def logits(model: Any) -> FloatArray:
    """A model's answer to `IDS`."""
    with torch.inference_mode():
        return np.asarray(model(input_ids=IDS, attention_mask=MASK).logits.numpy())


def _hook(adapter: Bottleneck) -> Any:
    down, down_bias, up, up_bias = (
        torch.from_numpy(getattr(adapter, part)) for part in ("down", "down_bias", "up", "up_bias")
    )

    def add(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        inner = _ACTIVATIONS[adapter.activation](output @ down.T + down_bias)
        return output + inner @ up.T + up_bias

    return add
