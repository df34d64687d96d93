"""Imports LoRA with a head, as Hugging Face's peft saves it, as a task of an encoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tidal.encoder_tasks.entries import task_entry
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.heads import HEADS
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import FloatArray, Head, LinearTerms, NormTerms, TaskTerms
from tidal_builders.foreign.files import layer_path, read_json
from tidal_builders.foreign.peft import PeftLora, read_peft_lora
from tidal_builders.foreign.recognise import Task, outputs_of, recognise
from tidal_builders.pets.importing.base_model import confirm_base
from tidal_builders.pets.importing.heads import (
    HeadOf,
    choose_task,
    embedding_settings,
    head_labels,
    settings_of,
)
from tidal_builders.pets.importing.imported import ImportBase, Imported, ImportOptions

if TYPE_CHECKING:
    from tidal_builders.foreign.trained_on import TrainedOn
    from tidal_builders.pets.importing.sources import SourceModel, Tail

_HEADS = ("classifier", "score", "qa_outputs")
# How the names of a head's modules begin that scores the words of the vocabulary.
_WORDS = ("cls.", "lm_head.", "vocab_")
_MATRIX = 2
# How transformers names classes that nobody has named.
_NUMBERED = re.compile(r"LABEL_\d+")


def import_peft(folder: Path, base: ImportBase, options: ImportOptions) -> Imported:
    """Import a task from a peft folder with LoRA and the head that its task needs.

    Args:
        folder: Folder of the adapter.
        base: Base that the task is made for.
        options: Options of the import.

    Raises:
        InvalidArgument: A file is missing or wrong, or the shapes are not the base's.
        Unsupported: The adapter changes something that a task cannot store.
    """
    found = read_peft_lora(folder, {path: layer.shape for path, layer in base.layers.linear.items()})
    changed: dict[str, FloatArray] = {}
    parts: dict[str, FloatArray] = {}
    for name, array in found.others.items():
        module, _, part = name.rpartition(".")
        if name.startswith(_WORDS):
            continue  # of a head of words, which is read from peft's model
        if module.rpartition(".")[2] in _HEADS and part in ("weight", "bias"):
            parts[part] = array
        else:
            changed[name] = array
    outputs = len(parts.get("weight", ()))
    trained = confirm_base(folder, found.base, base, options)
    task = choose_task(_task(found, folder, trained.folder, outputs), outputs or None, options, folder)
    if HEADS[task].vocabulary:
        _check_head(parts, task)
        head_labels(task, options, None, 0)  # refuses labels
        settings_of(task, base, options)  # refuses options of other tasks
        return _with_words(folder, trained, task, _layers(found, changed, base), base)
    changed |= {name: array for name, array in found.others.items() if name.startswith(_WORDS)}
    layers = _layers(found, changed, base)
    _check_head(parts, task)
    named, note = (None, "") if options.labels is not None else _named(folder, trained.folder, outputs)
    settings, tail = settings_of(task, base, options, folder, trained.folder), None
    if task == "embedding":
        settings, tail = embedding_settings(options, base.layers.width, folder, trained.folder, base.folder)
    head = HeadOf(task, head_labels(task, options, named, outputs), settings)
    none = np.zeros((0, base.layers.width), np.float32), np.zeros(0, np.float32)
    values = (parts["weight"], parts["bias"]) if parts else none
    notes = [trained.note, *([note] if note and head.labels else [])]
    if not found.token_types:
        notes.append("peft trains and runs adapters of QUESTION_ANS without token types, so this task has none")
    source = None if trained.folder is None else partial(_source, folder, trained.folder, task, outputs, tail)
    return Imported(
        "lora",
        TaskTerms(Head(*values, **head.fields(), token_types=found.token_types), *layers),
        Provenance(format="peft", source=str(folder), notes=tuple(notes)),
        source,
    )


def _with_words(
    folder: Path,
    trained: TrainedOn,
    task: str,
    layers: tuple[dict[str, LinearTerms], dict[str, NormTerms]],
    base: ImportBase,
) -> Imported:
    """A task with the words' scores of the model that peft makes of the adapter and its base."""
    if trained.folder is None:
        raise InvalidArgument(
            f"a task of {task} reads the head of the adapter's base, whose files are not on this machine; name their "
            "folder by --base-model FOLDER"
        )
    from tidal_builders.pets.importing.sources import peft_model  # transformers and peft: slow to load
    from tidal_builders.pets.importing.vocabulary import vocabulary_head

    merged = peft_model(folder, trained.folder, task, 0)
    head = vocabulary_head(task, merged.get_base_model(), base, folder, trained.folder, base.folder)
    return Imported(
        "lora",
        TaskTerms(head, *layers),
        Provenance(format="peft", source=str(folder), notes=(trained.note,)),
        partial(_source, folder, trained.folder, task, 0, None),
    )


def _source(folder: Path, base: Path, task: str, outputs: int, tail: Tail | None) -> SourceModel:
    # transformers and peft: slow to load
    from tidal_builders.pets.importing.sources import (
        SourceModel,
        logits_of,
        longest_input,
        peft_model,
        source_tokenizer,
    )

    model, tokenizer = peft_model(folder, base, task, outputs), source_tokenizer(folder, base)
    per_token = task_entry(task).per_token
    longest = longest_input(model, tokenizer)
    made = SourceModel("peft's model", model, tokenizer, longest, tail or logits_of, per_token)
    if not HEADS[task].vocabulary:
        return made
    from tidal_builders.pets.importing.vocabulary import vocabulary_source

    return vocabulary_source(made, task, folder, base)


def _task(found: PeftLora, folder: Path, base: Path | None, outputs: int) -> Task:
    """The adapter's task, or the one that a configuration beside it or its base's names: peft does not store it."""
    if found.task not in ("classification", "unknown"):
        return found.task
    for position in (folder, base):
        if position is not None and (position / "config.json").is_file():
            task = recognise(position).task
            if task == "multi_label" and (
                position == folder or outputs_of(read_json(position / "config.json")) == outputs
            ):
                return task
            if position == folder and task in ("regression", "token_classification", "question_answering"):
                return task
    return found.task


def _check_head(parts: Mapping[str, FloatArray], task: str) -> None:
    if HEADS[task].outputs == 0 or HEADS[task].vocabulary:
        if parts:
            raise Unsupported(f"it has a classifier, which a task of {task} has not; train without it")
    elif parts.keys() != {"weight", "bias"} or parts["weight"].ndim != _MATRIX:
        raise Unsupported(
            "it has no head of one linear layer; train with its task_type or with modules_to_save that names the head"
        )


def _named(folder: Path, base: Path | None, outputs: int) -> tuple[list[str] | None, str]:
    """Names of the labels in a configuration, and a note of their origin.

    The configuration beside the adapter names them, else that of the base, if the base is a classifier with as many.
    """
    for position, of in ((folder, "the adapter's"), (base, "its base's")):
        if position is None or not (position / "config.json").is_file():
            continue
        by_number = read_json(position / "config.json").get("id2label")
        if isinstance(by_number, dict) and (position == folder or len(by_number) == outputs):
            named = [str(label) for _, label in sorted(by_number.items(), key=lambda item: str(item[0]).zfill(9))]
            if all(_NUMBERED.fullmatch(name) for name in named):
                continue
            return named, f"labels are those of {of} config.json: {', '.join(named)[:200]}"
    return None, ""


def _layers(
    found: PeftLora, changed: Mapping[str, FloatArray], base: ImportBase
) -> tuple[dict[str, LinearTerms], dict[str, NormTerms]]:
    """Terms of linear layers and normalisations; `changed` has the trained biases by name."""
    biases: dict[str, FloatArray] = {}
    norm: dict[str, NormTerms] = {}
    for name, array in changed.items():
        module, _, part = name.rpartition(".")
        linear, normal = layer_path(module, base.layers.linear), layer_path(module, base.layers.norm)
        shared = base.layers.linear[linear] if linear else base.layers.norm[normal] if normal else None
        if part != "bias" or shared is None:
            raise Unsupported(
                f"tensor '{name}' is trained as a whole; accepted are LoRA, biases and a head of one linear layer"
            )
        if array.shape != shared.bias.shape:
            raise InvalidArgument(
                f"tensor '{name}' has the shape {list(array.shape)}, the base's is {shared.bias.shape}"
            )
        if linear:
            biases[linear] = array - shared.bias
        elif normal:
            norm[normal] = NormTerms(base.layers.norm[normal].weight, array)
    for path, added in found.biases.items():
        biases[path] = biases[path] + added if path in biases else added
    paths = sorted({*found.deltas, *biases})
    return {path: LinearTerms(found.deltas.get(path), biases.get(path)) for path in paths}, norm
