"""Imports bottleneck adapters as AdapterHub's library saves them: a folder with the adapter and its head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.kinds.positions import sparse_delta
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import Activation, Bottleneck, FloatArray, Head, LinearTerms, TaskTerms
from tidal_builders.foreign.files import layer_path, read_json, read_weights
from tidal_builders.foreign.recognise import Task, sentence_of, task_of_architecture
from tidal_builders.pets.importing.adapterhub_model import AdapterModel, SavedHead
from tidal_builders.pets.importing.base_model import confirm_base
from tidal_builders.pets.importing.imported import ImportBase, Imported, ImportOptions, labels_of

if TYPE_CHECKING:
    from tidal_builders.pets.importing.sources import SourceModel

CONFIG_FILE, HEAD_CONFIG_FILE = "adapter_config.json", "head_config.json"
_SAVE = "save it anew with `model.save_adapter(folder, name, use_safetensors=True)`"
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# Older releases name a configuration in place of its fields.
_NAMED: dict[str, dict[str, Any]] = {
    "houlsby": {"non_linearity": "swish"}, "double_seq_bn": {"non_linearity": "swish"},
    "pfeiffer": {"original_ln_before": True}, "seq_bn": {"original_ln_before": True},
}  # fmt: skip
# What a bottleneck has to be, where the unified form has one: between a layer's output and the residual sum.
_REQUIRED: dict[str, Any] = {
    "original_ln_before": False, "original_ln_after": True, "ln_before": False, "ln_after": False,
    "is_parallel": False, "use_gating": False, "phm_layer": False, "inv_adapter": None,
}  # fmt: skip
_NAME = re.compile(r"(?P<at>.+)\.adapters\.[^.]+\.adapter_(?P<part>down\.0|up)\.(?P<term>weight|bias)")
# What a head answers, by its type.
_HEAD_TYPES: dict[str, Task] = {
    "classification": "classification", "multilabel_classification": "multi_label", "tagging": "token_classification",
    "question_answering": "question_answering", "multiple_choice": "multiple_choice", "masked_lm": "fill_mask",
    "causal_lm": "text_generation", "seq2seq_lm": "seq2seq", "image_classification": "vision",
}  # fmt: skip
# The linear layer that a module's adapters follow, by how the module's name ends.
_FOLLOWS = {"attention_adapters": "attention.out_lin", "output_adapters": "ffn.lin2"}
# The base's layer between the first token and the pooled vector, by its activation: BERT's and DistilBERT's.
_POOLERS = {"tanh": "pooler.dense", "relu": "pre_classifier"}


def import_adapterhub(folder: Path, base: ImportBase, options: ImportOptions) -> Imported:
    """Import a task from an AdapterHub folder that has an adapter and its head.

    A head of two layers is accepted if its first one can replace the base's pooler: it is stored as a difference of it.

    Args:
        folder: Folder of the adapter.
        base: Base that the task is made for.
        options: Options of the import.

    Raises:
        InvalidArgument: A file is missing or wrong, or the shapes are not the base's.
        Unsupported: The adapter or its head has a form that a task cannot store.
    """
    described = read_json(folder / CONFIG_FILE)
    config = _config(described.get("config"))
    activation, scale = _check(config)
    tensors = read_weights(folder, "adapter.safetensors", "pytorch_adapter.bin", _SAVE)
    parts: dict[str, dict[str, FloatArray]] = {}
    for name, array in tensors.items():
        found = _NAME.fullmatch(name)
        path = _path(found["at"], base) if found else None
        if found is None or path is None:
            raise Unsupported(
                f"tensor '{name}' is not a bottleneck after a layer of the base; accepted are Houlsby adapters of "
                "this base"
            )
        parts.setdefault(path, {})[f"{found['part'].removesuffix('.0')}.{found['term']}"] = array
    linear = {path: LinearTerms(bottleneck=_bottleneck(path, each, activation, scale, base)) for path, each in
              sorted(parts.items())}  # fmt: skip
    saved, head, pooler, notes = _head(folder, base, options)
    linear |= pooler
    trained = confirm_base(folder, str(described.get("model_name") or ""), base, options)
    return Imported(
        "adapter",
        TaskTerms(head, linear),
        Provenance(format="adapterhub", source=str(folder), notes=(trained.note, *notes)),
        None if trained.folder is None else partial(_source, folder, trained.folder, parts, activation, scale, saved),
    )


def _source(
    folder: Path,
    base: Path,
    parts: Mapping[str, Mapping[str, FloatArray]],
    activation: Activation,
    scale: float,
    head: SavedHead,
) -> SourceModel:
    # transformers: slow to load
    from tidal_builders.pets.importing.sources import SourceModel, longest_input, source_tokenizer
    from tidal_builders.pets.source import load_encoder

    encoder, _ = load_encoder(base)
    tokenizer = source_tokenizer(folder, base)
    longest = longest_input(encoder, tokenizer)
    return SourceModel(
        "the adapter on its base", AdapterModel(encoder, parts, activation, scale, head), tokenizer, longest
    )


def _config(found: Any) -> dict[str, Any]:
    if isinstance(found, str) and found in _NAMED:
        return _NAMED[found]
    if not isinstance(found, dict):
        raise Unsupported(f"{CONFIG_FILE} does not describe a bottleneck adapter: config is {str(found)[:60]}")
    return found


def _check(config: Mapping[str, Any]) -> tuple[Activation, float]:
    """Activation and scale of a configuration that is a Houlsby adapter."""
    if config.get("architecture") not in (None, "bottleneck"):
        raise Unsupported(f"architecture is {config['architecture']}; accepted are bottleneck adapters")
    for name, required in _REQUIRED.items():
        if config.get(name, required) != required:
            also = " (as in Pfeiffer's seq_bn)" if name == "original_ln_before" else ""
            raise Unsupported(
                f"{name} is {config[name]}{also}: the adapter is not between a layer's output and the residual "
                "sum; accepted are Houlsby's (double_seq_bn)"
            )
    if not isinstance(config.get("residual_before_ln", True), bool):
        raise Unsupported(f"residual_before_ln is {config['residual_before_ln']}; accepted are true and false")
    activation = _ACTIVATIONS.get(str(config.get("non_linearity")).lower())
    if activation is None:
        raise Unsupported(f"non_linearity is {config.get('non_linearity')}; accepted: {', '.join(_ACTIVATIONS)}")
    scale = config.get("scaling", 1.0)
    if not isinstance(scale, int | float):
        raise Unsupported(f"scaling is {scale}; accepted is a number")
    return activation, float(scale)


def _path(at: str, base: ImportBase) -> str | None:
    """Path of the base's linear layer that the adapters of a module follow."""
    around, _, last = at.rpartition(".")
    return layer_path(f"{around}.{_FOLLOWS[last]}" if last in _FOLLOWS else f"{at}.dense", base.layers.linear)


def _bottleneck(
    path: str, parts: Mapping[str, FloatArray], activation: Activation, scale: float, base: ImportBase
) -> Bottleneck:
    outputs = base.layers.linear[path].shape[0]
    width = len(parts.get("down.weight", ()))
    wanted = {
        "down.weight": (width, outputs),
        "down.bias": (width,),
        "up.weight": (outputs, width),
        "up.bias": (outputs,),
    }
    shapes = {name: array.shape for name, array in parts.items()}
    if shapes != wanted or not width:
        raise InvalidArgument(f"the adapter after '{path}' has the shapes {shapes}; the base's layer accepts {wanted}")
    up, up_bias = np.float32(scale) * parts["up.weight"], np.float32(scale) * parts["up.bias"]
    return Bottleneck(parts["down.weight"], parts["down.bias"], up, up_bias, activation)


def _head(
    folder: Path, base: ImportBase, options: ImportOptions
) -> tuple[SavedHead, Head, dict[str, LinearTerms], tuple[str, ...]]:
    """The head as saved, the classifier, the replacement of the pooler by its path, and notes."""
    if not (folder / HEAD_CONFIG_FILE).is_file():
        raise Unsupported(f"{folder} has no head; save it with `save_adapter(folder, name, with_head=True)`")
    described = read_json(folder / HEAD_CONFIG_FILE)
    tensors = read_weights(folder, "model_head.safetensors", "pytorch_model_head.bin", _SAVE)
    config = described.get("config") or _plain(described, tensors)
    task = _HEAD_TYPES.get(str(config.get("head_type")), "unknown")
    if task != "classification":
        is_of = f": it is {sentence_of(task)}" if task != "unknown" else ""
        raise Unsupported(f"the head's type is {config.get('head_type')}; accepted is classification{is_of}")
    layers = [
        (tensors[name], tensors.get(f"{name.removesuffix('weight')}bias"))
        for name in sorted(tensors, key=_place)
        if name.endswith("weight")
    ]
    weight, bias = layers[-1] if layers else (np.zeros((0, 0), np.float32), None)
    if weight.ndim != 2 or weight.shape[1] != base.layers.width or len(layers) != config.get("layers"):
        raise InvalidArgument(f"the head differs from {HEAD_CONFIG_FILE}, or is not for this base")
    named = described.get("label2id") or config.get("label2id")
    labels = sorted(named, key=named.__getitem__) if isinstance(named, dict) else None
    head = Head(
        weight,
        bias if bias is not None else np.zeros(len(weight), np.float32),
        labels_of(options.labels, labels, len(weight)),
    )
    saved = SavedHead(layers, str(config.get("activation_function")), bool(config.get("use_pooler")))
    if len(layers) == 1 and config.get("use_pooler"):
        return saved, head, {}, ()
    path = _POOLERS.get(str(config.get("activation_function")), "")
    pooler = base.layers.linear.get(path)
    replaces = len(layers) == 2 and not config.get("use_pooler")
    if not replaces or pooler is None or layers[0][0].shape != pooler.shape:
        raise Unsupported(
            f"the head has {config.get('layers')} layers, use_pooler {config.get('use_pooler')} and "
            f"{config.get('activation_function')}; accepted are 1 on the pooler, and 2 without it, the first with the "
            "pooler's own activation, to replace the pooler"
        )
    first, first_bias = layers[0]
    difference = first - pooler.weight
    shift = np.asarray((first_bias if first_bias is not None else 0) - pooler.bias, np.float32)
    if not difference.any() and not shift.any():
        return saved, head, {}, ()
    positions = np.flatnonzero(difference)
    delta = sparse_delta(positions, difference.reshape(-1)[positions], pooler.shape)
    note = f"the head's first layer is carried as a difference of {path}, {len(positions)} values"
    return saved, head, {path: LinearTerms(delta, shift)}, (note,)


def _plain(described: Mapping[str, Any], tensors: Mapping[str, FloatArray]) -> dict[str, Any]:
    """The configuration that the library would save for a head of one of transformers' own classes, given its name
    only.

    Raises:
        Unsupported: The head is of another task than classification.
    """
    named = str(described.get("model_class") or "")
    task = task_of_architecture(named)
    if task not in ("classification", "unknown"):
        raise Unsupported(f"the head is that of {named}; accepted is classification: it is {sentence_of(task)}")
    two = "pre_classifier.weight" in tensors
    return {
        "head_type": "classification", "layers": 2 if two else 1, "use_pooler": not two, "activation_function": "relu",
    }  # fmt: skip


def _place(name: str) -> tuple[list[int], bool]:
    """Order of a head's layers: heads.<name>.<index>.weight, or pre_classifier before classifier."""
    return [int(number) for number in re.findall(r"\.(\d+)\.", name)], not name.startswith("pre_")
