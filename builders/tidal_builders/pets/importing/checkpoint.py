"""Imports a fully fine-tuned checkpoint of the base, as BitFit if only biases and norms changed, else as differences.

The largest differences of linear weights are kept, compared over the whole model and not within each matrix:
fine-tuning changes some layers much more than others, and this keeps the most of the change. Biases, normalisations and
the classifier are kept whole; a task cannot change embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tidal.encoder_tasks.entries import task_entry
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.heads import HEADS, POOLED
from tidal.pets.kinds.positions import Positions, sparse_delta
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import FloatArray, Head, LinearLayer, LinearTerms, NormTerms, TaskTerms
from tidal.tasks.digests import tensor_digest
from tidal_builders.foreign.files import array_of, read_json
from tidal_builders.foreign.recognise import outputs_of, recognise
from tidal_builders.pets.encoder import read_encoder
from tidal_builders.pets.importing.carried import carried_model
from tidal_builders.pets.importing.heads import (
    HeadOf,
    choose_task,
    embedding_settings,
    head_labels,
    settings_of,
)
from tidal_builders.pets.importing.imported import ImportBase, Imported, ImportOptions
from tidal_builders.pets.importing.ladder import LADDER
from tidal_builders.pets.importing.sources import (
    SourceModel,
    Tail,
    load_source,
    logits_of,
    longest_input,
    source_tokenizer,
)
from tidal_builders.pets.importing.vocabulary import vocabulary_head, vocabulary_source

# Layers between the first token's hidden state and the pooled vector.
_POOLERS = frozenset(("pooler.dense", "pre_classifier"))
# RoBERTa's head: its first layer corresponds to BERT's pooler.
_TWO_LAYERS = ("dense", "out_proj")


def import_checkpoint(folder: Path, base: ImportBase, options: ImportOptions) -> Imported:
    """Import a task from a fine-tuned model's folder in Hugging Face's format, with weights as safetensors.

    Args:
        folder: Folder of the checkpoint.
        base: Base that the task is made for.
        options: Options of the import.

    Raises:
        InvalidArgument: The folder has no such model, or its layers are not the base's.
        Unsupported: Its head has a form that a task cannot store.
    """
    if options.sparsity is not None and not 0 <= options.sparsity < 1:
        raise InvalidArgument(f"the sparsity is {options.sparsity:g}; accepted is 0 up to, but not, 1")
    outputs = outputs_of(read_json(folder / "config.json"))
    task = choose_task(recognise(folder).task, outputs, options, folder)
    model = load_source(folder, task)
    encoder = read_encoder(model)
    linear, norm = dict(encoder.linear), dict(encoder.norm)
    if task not in POOLED:  # a pooler is not used, and may be missing or random
        linear |= {path: layer for path, layer in base.layers.linear.items() if path in _POOLERS}
        linear = {path: layer for path, layer in linear.items() if path in base.layers.linear or path not in _POOLERS}
    own = vocabulary_head(task, model, base, folder, base.folder) if HEADS[task].vocabulary else None
    weight, bias, first = _head(model) if own is None and HEADS[task].outputs != 0 else _no_head(base)
    if first is not None and "pooler.dense" in base.layers.linear:
        linear["pooler.dense"] = first
    elif first is not None:
        raise Unsupported(
            f"{type(model).__name__} has a head of two layers; the base has no pooler that the first one could replace"
        )
    _check_layers(linear, {path: layer.shape for path, layer in base.layers.linear.items()}, folder)
    _check_layers(norm, {path: layer.weight.shape for path, layer in base.layers.norm.items()}, folder)

    named = [str(model.config.id2label[number]) for number in range(len(weight))]
    settings, tail = settings_of(task, base, options, folder), cast(Tail, logits_of)
    if task == "embedding":
        settings, tail = embedding_settings(options, base.layers.width, folder, base.folder)
    made = HeadOf(task, head_labels(task, options, named, len(weight)), settings)
    head = Head(weight, bias, **made.fields()) if own is None else own
    norms = {
        path: NormTerms(layer.weight, layer.bias)
        for path, layer in norm.items()
        if not _same(layer, base.layers.norm[path])
    }
    differences = {path: layer.weight - base.layers.linear[path].weight for path, layer in linear.items()}
    biases = {path: layer.bias - base.layers.linear[path].bias for path, layer in linear.items()}
    changed = any(difference.any() for difference in differences.values())
    masked = changed and _masked(differences, base)
    lost = _lost(encoder.frozen, base)
    notes = [lost, _numbered(head.labels) if options.labels is None else ""]
    origin = options.base_model or base.folder

    source = partial(source_model, folder, base.folder, task, tail)

    def imported(kind: str, kept: Mapping[str, Positions], note: str = "", *, complete: bool = True) -> Imported:
        """The task with these places of the differences; `complete` if they are all."""
        deltas = {
            path: sparse_delta(positions, differences[path].reshape(-1)[positions], linear[path].shape)
            for path, positions in kept.items()
            if len(positions)
        }
        linears = {
            path: LinearTerms(delta=deltas.get(path), bias=biases[path] if biases[path].any() else None)
            for path in linear
            if biases[path].any() or path in deltas
        }
        lossless = complete and not lost
        if lost and origin is None:
            carried = None  # the weights that the task cannot change are not available
        else:
            carried = None if lossless else partial(carried_model, source, base, origin if lost else None)
        provenance = Provenance(
            format="checkpoint", source=str(folder), notes=tuple(each for each in (*notes, note) if each)
        )
        return Imported(kind, TaskTerms(head, linears, norms), provenance, source, lossless, carried)

    def at(sparsity: float) -> Imported:
        kept, note = _largest(differences, sparsity)
        complete = sum(map(len, kept.values())) == sum(map(np.count_nonzero, differences.values()))
        return imported("diff_pruning", kept, note, complete=complete)

    if not changed:
        return imported("bitfit", {})
    if masked:
        whole = {path: np.flatnonzero(difference) for path, difference in differences.items()}
        return imported("maskbert", whole, "all weights that differ are 0: a mask, which is stored completely")
    return at(options.sparsity) if options.sparsity is not None else replace(at(LADDER[0]), at_sparsity=at)


def _masked(differences: Mapping[str, FloatArray], base: ImportBase) -> bool:
    """Whether every weight that differs is 0 in the checkpoint (MaskBert)."""
    return all(
        np.array_equal(difference[difference != 0], -base.layers.linear[path].weight[difference != 0])
        for path, difference in differences.items()
    )


def _numbered(labels: Sequence[str]) -> str:
    unnamed = bool(labels) and all(label == f"LABEL_{number}" for number, label in enumerate(labels))
    return "the checkpoint only numbers its labels (LABEL_0 …); name them by --labels" if unnamed else ""


def source_model(folder: Path, base: Path | None, task: str, tail: Tail) -> SourceModel:
    """The checkpoint itself, with its tokenizer, or the base's if it has none."""
    model = load_source(folder, task)
    tokenizer = source_tokenizer(folder, base)
    per_token = task_entry(task).per_token
    found = SourceModel("the checkpoint", model, tokenizer, longest_input(model, tokenizer), tail, per_token)
    return vocabulary_source(found, task, folder, base) if HEADS[task].vocabulary else found


def _no_head(base: ImportBase) -> tuple[FloatArray, FloatArray, None]:
    return np.zeros((0, base.layers.width), np.float32), np.zeros(0, np.float32), None


def _head(model: Any) -> tuple[FloatArray, FloatArray, LinearLayer | None]:
    """Weight and bias of the head, and the layer before it if the head has one of its own."""
    found = getattr(model, "classifier", None) or getattr(model, "qa_outputs", None)
    first = None
    if found is not None and all(isinstance(getattr(found, part, None), torch.nn.Linear) for part in _TWO_LAYERS):
        first = LinearLayer(array_of(found.dense.weight), array_of(found.dense.bias))
        found = found.out_proj
    if not isinstance(found, torch.nn.Linear):
        raise Unsupported(f"{type(model).__name__} has a head that a task cannot store; accepted is one linear layer")
    return array_of(found.weight), array_of(found.bias), first


def _check_layers(found: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    shapes = {path: tuple(layer.weight.shape) for path, layer in found.items()}
    for path in sorted({*shapes, *wanted}):
        if shapes.get(path) != wanted.get(path):
            raise InvalidArgument(
                f"{folder} is not a fine-tuned version of this base: layer '{path}' is "
                f"{shapes.get(path) or 'missing'} in "
                f"it, {wanted.get(path) or 'missing'} in the base"
            )


def _same(left: Any, right: Any) -> bool:
    return np.array_equal(left.weight, right.weight) and np.array_equal(left.bias, right.bias)


def _lost(frozen: Mapping[str, FloatArray], base: ImportBase) -> str:
    """Describe the changes of the checkpoint that a task cannot store; "" if there are none."""
    lost = [name for name, array in frozen.items() if tensor_digest(array) != base.info.frozen.get(name)]
    return f"not carried, because a task cannot change it: {', '.join(lost)}" if lost else ""


def _largest(differences: Mapping[str, FloatArray], sparsity: float) -> tuple[dict[str, Positions], str]:
    """Ascending positions of the largest differences of the whole model by layer, and a note with their share."""
    sizes = np.concatenate([np.abs(difference).reshape(-1) for difference in differences.values()])
    count = min(round(len(sizes) * (1 - sparsity)), int(np.count_nonzero(sizes)))
    chosen = np.zeros(len(sizes), bool)
    if count:
        min_score = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
        np.greater(sizes, min_score, out=chosen)
        # Exactly `count`, also among equal values.
        chosen[np.flatnonzero(sizes == min_score)[: count - int(chosen.sum())]] = True
    share = float(np.dot(sizes[chosen], sizes[chosen]) / np.dot(sizes, sizes))
    ends = np.cumsum([difference.size for difference in differences.values()])
    parts = np.split(chosen, ends[:-1])
    note = (
        f"kept the {count} largest of {len(sizes)} weight differences ({sparsity:.2%} sparse, over the whole model), "
        f"{share:.1%} of their sum of squares"
    )
    return {path: np.flatnonzero(part) for path, part in zip(differences, parts, strict=True)}, note
