"""A checkpoint reduced to the changes that a task stores, which a lossy import must reproduce exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tidal.errors import InvalidArgument
from tidal.pets.kinds.positions import positions_of
from tidal.pets.terms import FloatArray, SparseDelta, TaskTerms
from tidal.tasks.digests import tensor_digest
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.imported import ImportBase
from tidal_builders.pets.importing.sources import SourceModel
from tidal_builders.pets.source import load_encoder


def carried_model(
    source: Callable[[], SourceModel], base: ImportBase, own: Path | None, terms: TaskTerms
) -> SourceModel:
    """The checkpoint's weights where the task stores a change, the base's elsewhere; values are never the task's.

    Args:
        source: Loads the checkpoint.
        base: Base that the task is made for.
        own: Folder of the base, for weights that the checkpoint changed and a task cannot; None if there are none.
        terms: Terms of the task, which only determine the changed weights.

    Raises:
        InvalidArgument: `own` is not the base.
    """
    loaded = source()
    model = loaded.model
    scores = model.get_output_embeddings()
    if scores is not None:  # of words, maybe by the embeddings, which become the base's; a task keeps its own scores
        scores.weight = torch.nn.Parameter(scores.weight.detach().clone())
    inside, around = _parameters(model)
    with torch.no_grad():
        for path, layer in base.layers.linear.items():
            target = _find(inside, around, f"{path}.weight")
            if target is None:
                continue
            change = terms.linear.get(path)
            kept = np.zeros(layer.weight.size, bool)
            if change is not None and isinstance(change.delta, SparseDelta):
                kept[positions_of(change.delta, layer.shape[1])] = True
            shared = torch.from_numpy(np.array(layer.weight))  # a copy: the base is mapped read-only
            target.copy_(torch.where(torch.from_numpy(kept.reshape(layer.shape)), target, shared))
        for name, array in ({} if own is None else _frozen(own, base, read_encoder(model).frozen)).items():
            inside[name].copy_(torch.from_numpy(array))
    return replace(loaded, title="the checkpoint's kept weights")


def _parameters(model: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights of the encoder by name, and those of the model around it."""
    inside = dict(model.base_model.named_parameters())
    own = {id(each) for each in inside.values()}
    return inside, {name: each for name, each in model.named_parameters() if id(each) not in own}


def _find(inside: Mapping[str, torch.Tensor], around: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    """A weight of the encoder, or of the layer that replaces its pooler in the model around it."""
    stands_in = name.replace("pooler.dense", "classifier.dense")  # RoBERTa
    return inside.get(name, around.get(name, around.get(stands_in)))


def _frozen(own: Path, base: ImportBase, found: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The base's values of the weights that the checkpoint changed and a task cannot."""
    encoder = read_encoder(load_encoder(own)[0])
    if base_layers(encoder)[0].digest != base.layers.digest:
        raise InvalidArgument(f"--base-model {own} is not the base that the model was built from: its weights differ")
    changed = [name for name, array in found.items() if base.info.frozen.get(name) != tensor_digest(array)]
    return {name: encoder.frozen[name] for name in changed}
