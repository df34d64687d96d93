"""How well a derived task answers labelled queries, beside the checkpoint that it was derived from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from tidal.errors import InvalidArgument
from tidal.pets.tasks.manifest import Kept
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.tasks.digests import tensor_digest
from tidal_builders.pets.base import base_layers
from tidal_builders.pets.encoder import Encoder, read_encoder
from tidal_builders.pets.importing.found import Base
from tidal_builders.pets.merging import merged_weights
from tidal_builders.rows import Columns, Rows, label_numbers, read_rows

_BATCH = 32


def measure_kept(folder: Path, model: Any, terms: TaskTerms, base: Base, data: Path, base_model: Path | None) -> Kept:
    """Accuracy of a checkpoint and of the task that was made of it.

    Args:
        folder: the checkpoint's, with its tokenizer.
        model: the checkpoint, loaded; it becomes the task's full model.
        terms: the task.
        base: what it is for.
        data: labelled queries, see `read_rows`.
        base_model: the base's Hugging Face folder, for the weights that the checkpoint changed and a task cannot.

    Raises:
        InvalidArgument: the data are wrong, or the base's own weights are needed and not given.
    """
    rows = read_rows(data, Columns())
    truth = label_numbers(rows, terms.head.labels)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = read_encoder(model)
    longest = min(tokenizer.model_max_length, len(encoder.positions))
    restored = _restored(encoder, base, base_model)
    before = _right(model, tokenizer, rows, truth, longest)
    ours = model.base_model.state_dict()
    around = {name: tensor for name, tensor in model.state_dict().items() if name not in ours}
    for name, shared in (*base.layers.linear.items(), *base.layers.norm.items()):
        for part in ("weight", "bias"):
            _put(ours, around, f"{name}.{part}", getattr(shared, part))
    for name, array in (*restored.items(), *merged_weights(terms, base.layers).items()):
        _put(ours, around, name, array)
    after = _right(model, tokenizer, rows, truth, longest)
    return Kept(rows=len(truth), accuracy=float(after.mean()), source_accuracy=float(before.mean()))


def _put(ours: dict[str, torch.Tensor], around: dict[str, torch.Tensor], name: str, array: Any) -> None:
    """Write a weight of the encoder, or of what stands for its pooler in the model around it, in place."""
    stands_in = name.replace("pooler.dense", "classifier.dense")
    target = ours.get(name, around.get(name, around.get(stands_in)))
    if target is not None:  # a layer that had no bias has none to write
        target.copy_(torch.from_numpy(np.array(array)))  # a copy: the base is mapped read-only


def _restored(encoder: Encoder, base: Base, base_model: Path | None) -> Mapping[str, FloatArray]:
    """The base's weights in place of those that the checkpoint changed and a task cannot."""
    digests = {name: tensor_digest(array) for name, array in encoder.frozen.items()}
    changed = [name for name, digest in digests.items() if base.info.frozen.get(name) != digest]
    if not changed:
        return {}
    if base_model is None:
        raise InvalidArgument(
            f"the checkpoint changed {', '.join(changed)}, which a task cannot: to measure its accuracy without, the "
            "base's own weights are needed, --base-model FOLDER"
        )
    with warnings.catch_warnings(action="ignore"):
        own = read_encoder(AutoModel.from_pretrained(base_model, dtype=torch.float32, use_safetensors=True))
    if base_layers(own)[0].digest != base.layers.digest:
        raise InvalidArgument(f"{base_model} is not the base that the model was built from")
    return {name: own.frozen[name] for name in changed}


def _right(model: Any, tokenizer: Any, rows: Rows, truth: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.bool_]:
    """Whether each query, cut to the longest input that the model reads, is answered rightly."""
    found: list[int] = []
    for begin in range(0, len(rows.texts), _BATCH):
        columns = list(zip(*rows.texts[begin : begin + _BATCH], strict=True))
        inputs = tokenizer(*map(list, columns), padding=True, truncation=True, max_length=longest, return_tensors="pt")
        with torch.inference_mode():
            found += model(**inputs).logits.argmax(-1).tolist()
    return np.asarray(np.asarray(found) == truth)
