"""LoRA with a classifier, as Hugging Face's peft saves it, as a task of an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import FloatArray, Head, LinearTerms, NormTerms, TaskTerms
from tidal_builders.foreign.files import layer_path, read_json
from tidal_builders.foreign.peft import PeftLora, read_peft_lora
from tidal_builders.pets.importing.found import Base, Imported, Wishes, labels_of

_HEADS = ("classifier", "score")


def import_peft(folder: Path, base: Base, wishes: Wishes) -> Imported:
    """A task of a peft folder with LoRA and a classifier.

    Raises:
        InvalidArgument: a file is missing or wrong, or the shapes are not the base's.
        Unsupported: it changes what a task cannot; says what.
    """
    found = read_peft_lora(folder, {path: layer.shape for path, layer in base.layers.linear.items()})
    changed: dict[str, FloatArray] = {}
    head: dict[str, FloatArray] = {}
    for name, array in found.others.items():
        module, _, part = name.rpartition(".")
        if module.rpartition(".")[2] in _HEADS and part in ("weight", "bias"):
            head[part] = array
        else:
            changed[name] = array
    terms = TaskTerms(_head(head, folder, wishes), *_layers(found, changed, base))
    return Imported("lora", terms, Provenance(format="peft", source=str(folder), notes=(found.note,)))


def _head(parts: Mapping[str, FloatArray], folder: Path, wishes: Wishes) -> Head:
    if parts.keys() != {"weight", "bias"} or parts["weight"].ndim != 2:
        raise Unsupported(
            "it holds no classifier of one linear layer; train with task_type SEQ_CLS or modules_to_save=['classifier']"
        )
    named = None
    if (folder / "config.json").is_file():
        by_number = read_json(folder / "config.json").get("id2label")
        if isinstance(by_number, dict):
            named = [str(label) for _, label in sorted(by_number.items(), key=lambda item: str(item[0]).zfill(9))]
    return Head(parts["weight"], parts["bias"], labels_of(wishes.labels, named, len(parts["weight"])))


def _layers(
    found: PeftLora, changed: Mapping[str, FloatArray], base: Base
) -> tuple[dict[str, LinearTerms], dict[str, NormTerms]]:
    """Terms of linear layers and normalisations; `changed` holds biases as they are afterwards, by name."""
    biases: dict[str, FloatArray] = {}
    norm: dict[str, NormTerms] = {}
    for name, array in changed.items():
        module, _, part = name.rpartition(".")
        linear, normal = layer_path(module, base.layers.linear), layer_path(module, base.layers.norm)
        shared = base.layers.linear[linear] if linear else base.layers.norm[normal] if normal else None
        if part != "bias" or shared is None:
            raise Unsupported(f"tensor '{name}' is trained as a whole; accepted are LoRA, biases and a classifier")
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
