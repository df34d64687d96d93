"""Imports LoRA with a classifier, as Hugging Face's peft saves it, as a task of an encoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import FloatArray, Head, LinearTerms, NormTerms, TaskTerms
from tidal_builders.foreign.files import layer_path, read_json
from tidal_builders.foreign.peft import PeftLora, read_peft_lora, require_task
from tidal_builders.foreign.recognise import Task, recognise, sentence_of
from tidal_builders.pets.importing.base_model import confirm_base
from tidal_builders.pets.importing.imported import ImportBase, Imported, ImportOptions, labels_of

if TYPE_CHECKING:
    from tidal_builders.pets.importing.sources import SourceModel

_HEADS = ("classifier", "score")
# How transformers names classes that nobody has named.
_NUMBERED = re.compile(r"LABEL_\d+")
_OTHER_TASKS: frozenset[Task] = frozenset(("regression", "token_classification", "question_answering"))


def import_peft(folder: Path, base: ImportBase, options: ImportOptions) -> Imported:
    """Import a task from a peft folder with LoRA and a classifier.

    Args:
        folder: Folder of the adapter.
        base: Base that the task is made for.
        options: Options of the import.

    Raises:
        InvalidArgument: A file is missing or wrong, or the shapes are not the base's.
        Unsupported: The adapter changes something that a task cannot store.
    """
    found = read_peft_lora(folder, {path: layer.shape for path, layer in base.layers.linear.items()})
    require_task(found, folder, "classification")
    changed: dict[str, FloatArray] = {}
    head: dict[str, FloatArray] = {}
    for name, array in found.others.items():
        module, _, part = name.rpartition(".")
        if module.rpartition(".")[2] in _HEADS and part in ("weight", "bias"):
            head[part] = array
        else:
            changed[name] = array
    layers = _layers(found, changed, base)
    _check_head(head)
    trained = confirm_base(folder, found.base, base, options)
    labels, note = _labels(folder, trained.folder, options, len(head["weight"]))
    terms = TaskTerms(Head(head["weight"], head["bias"], labels), *layers)
    notes = (trained.note, *([note] if note else []))
    source = None if trained.folder is None else partial(_source, folder, trained.folder, len(labels))
    return Imported("lora", terms, Provenance(format="peft", source=str(folder), notes=notes), source)


def _source(folder: Path, base: Path, classes: int) -> SourceModel:
    # transformers and peft: slow to load
    from tidal_builders.pets.importing.sources import SourceModel, longest_input, peft_model, source_tokenizer

    model, tokenizer = peft_model(folder, base, classes), source_tokenizer(folder, base)
    return SourceModel("peft's model", model, tokenizer, longest_input(model, tokenizer))


def _check_head(parts: Mapping[str, FloatArray]) -> None:
    if parts.keys() != {"weight", "bias"} or parts["weight"].ndim != 2:
        raise Unsupported(
            "it has no classifier of one linear layer; train with task_type SEQ_CLS or modules_to_save=['classifier']"
        )


def _labels(folder: Path, base: Path | None, options: ImportOptions, classes: int) -> tuple[tuple[str, ...], str]:
    """Names of the classes, and a note of their origin.

    The configuration beside the adapter names them, else that of the base, if the base is a classifier with as many.
    """
    for position, of in ((folder, "the adapter's"), (base, "its base's")):
        if position is None or not (position / "config.json").is_file():
            continue
        task = recognise(position).task
        if task == "multi_label" or (position == folder and task in _OTHER_TASKS):
            raise Unsupported(f"{of} config.json names {sentence_of(task)}")
        by_number = read_json(position / "config.json").get("id2label")
        if options.labels is None and isinstance(by_number, dict) and (position == folder or len(by_number) == classes):
            named = [str(label) for _, label in sorted(by_number.items(), key=lambda item: str(item[0]).zfill(9))]
            if all(_NUMBERED.fullmatch(name) for name in named):
                continue
            return labels_of(None, named, classes), f"labels are those of {of} config.json: {', '.join(named)[:200]}"
    return labels_of(options.labels, None, classes), ""


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
                f"tensor '{name}' is trained as a whole; accepted are LoRA, biases and a classifier of one linear layer"
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
