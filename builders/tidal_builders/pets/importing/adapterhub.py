"""Imports bottleneck adapters as AdapterHub's library saves them: a folder with the adapter and its head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tidal.encoder_tasks.entries import task_entry
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.heads import POOLED
from tidal.pets.kinds.positions import sparse_delta
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import Activation, Bottleneck, FloatArray, Head, LinearTerms, TaskTerms
from tidal_builders.foreign.files import layer_path, read_json, read_weights
from tidal_builders.foreign.recognise import Task, sentence_of, task_of_architecture
from tidal_builders.pets.importing.adapterhub_model import AdapterForm, AdapterModel, SavedHead
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
    from tidal_builders.pets.importing.sources import SourceModel, Tail

CONFIG_FILE, HEAD_CONFIG_FILE = "adapter_config.json", "head_config.json"
_SAVE = "save it again with `model.save_adapter(folder, name, use_safetensors=True)`"
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# Older releases name a configuration in place of its fields.
_PFEIFFER = {"original_ln_before": True, "non_linearity": "relu"}
_NAMED: dict[str, dict[str, Any]] = {
    "houlsby": {"non_linearity": "swish"}, "double_seq_bn": {"non_linearity": "swish"},
    "pfeiffer": _PFEIFFER, "seq_bn": _PFEIFFER,
}  # fmt: skip
# What a bottleneck has to be, where the unified form has one; and why a task cannot store another.
_REQUIRED: dict[str, tuple[Any, str]] = {
    "original_ln_after": (True, "no normalisation follows the adapter"),
    "ln_before": (False, "the adapter normalises its input itself"),
    "ln_after": (False, "the adapter normalises its output itself"),
    "is_parallel": (False, "the adapter reads the layer's input, not its output"),
    "use_gating": (False, "a gate scales the adapter by the mean over a text's tokens"),
    "phm_layer": (False, "its weights are sums of Kronecker products"),
    "inv_adapter": (None, "an invertible adapter changes the embeddings"),
}
_NAME = re.compile(r"(?P<at>.+)\.adapters\.[^.]+\.adapter_(?P<part>down\.0|up)\.(?P<term>weight|bias)")
# What a head answers, by its type.
_HEAD_TYPES: dict[str, Task] = {
    "classification": "classification", "multilabel_classification": "multi_label", "tagging": "token_classification",
    "question_answering": "question_answering",
}  # fmt: skip
_MATRIX, _TWO_LAYERS = 2, 2
# The linear layer that a module's adapters follow, by how the module's name ends.
_FOLLOWS = {"attention_adapters": "attention.out_lin", "output_adapters": "ffn.lin2"}
# The base's layer between the first token and the pooled vector, by its activation: BERT's and DistilBERT's.
_POOLERS = {"tanh": "pooler.dense", "relu": "pre_classifier"}


def import_adapterhub(folder: Path, base: ImportBase, options: ImportOptions) -> Imported:
    """Import a task from an AdapterHub folder that has an adapter and, unless it is an embedding, its head.

    A head of two layers is accepted if its first one can replace the base's pooler: it is stored as a difference of it.

    Args:
        folder: Folder of the adapter.
        base: Base that the task is made for.
        options: Options of the import.

    Raises:
        InvalidArgument: A file is missing or wrong, or the shapes are not the base's.
        Unsupported: The adapter or its head has a form that a task cannot store; names the part.
    """
    described = read_json(folder / CONFIG_FILE)
    config = _config(described.get("config"))
    form = _check(config)
    tensors = read_weights(folder, "adapter.safetensors", "pytorch_adapter.bin", _SAVE)
    parts: dict[str, dict[str, FloatArray]] = {}
    for name, array in tensors.items():
        found = _NAME.fullmatch(name)
        path = _path(found["at"], base) if found else None
        if found is None or path is None:
            raise Unsupported(
                f"tensor '{name}' is not a bottleneck after a layer of the base; accepted are adapters of this base"
            )
        parts.setdefault(path, {})[f"{found['part'].removesuffix('.0')}.{found['term']}"] = array
    linear = {path: LinearTerms(bottleneck=_bottleneck(path, each, form, base)) for path, each in sorted(parts.items())}
    trained = confirm_base(folder, str(described.get("model_name") or ""), base, options)
    own = _head(folder, trained.folder, base, options)
    linear |= own.pooler
    source = None
    if trained.folder is not None:
        source = partial(_source, folder, trained.folder, parts, form, own)
    return Imported(
        "adapter",
        TaskTerms(own.head, linear),
        Provenance(format="adapterhub", source=str(folder), notes=(trained.note, *own.notes)),
        source,
    )


@dataclass(frozen=True, slots=True)
class _FoundHead:
    """A head of a folder.

    Attributes:
        head: The head.
        saved: The head as it was saved; None if there is none.
        tail: Computes an embedding from hidden states; None for other tasks.
        pooler: Replacement of the pooler, by its path.
        notes: Notes for the task's origin.
    """

    head: Head
    saved: SavedHead | None = None
    tail: Tail | None = None
    pooler: Mapping[str, LinearTerms] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _source(
    folder: Path, base: Path, parts: Mapping[str, Mapping[str, FloatArray]], form: AdapterForm, found: _FoundHead
) -> SourceModel:
    # transformers: slow to load
    from tidal_builders.pets.importing.sources import SourceModel, logits_of, longest_input, source_tokenizer
    from tidal_builders.pets.source import load_encoder

    encoder, _ = load_encoder(base)
    tokenizer = source_tokenizer(folder, base)
    longest = longest_input(encoder, tokenizer)
    model = AdapterModel(encoder, parts, form, found.saved)
    per_token = task_entry(found.head.task).per_token
    return SourceModel("the adapter on its base", model, tokenizer, longest, found.tail or logits_of, per_token)


def _config(found: Any) -> dict[str, Any]:
    if isinstance(found, str) and found in _NAMED:
        return _NAMED[found]
    if not isinstance(found, dict):
        raise Unsupported(f"{CONFIG_FILE} does not describe a bottleneck adapter: config is {str(found)[:60]}")
    return found


def _check(config: Mapping[str, Any]) -> AdapterForm:
    """Form of the adapters of a configuration."""
    if config.get("architecture") not in (None, "bottleneck"):
        raise Unsupported(f"architecture is {config['architecture']}; accepted are bottleneck adapters")
    for name, (required, reason) in _REQUIRED.items():
        if config.get(name, required) != required:
            raise Unsupported(
                f"{name} is {config[name]}: {reason}; accepted are Houlsby's (double_seq_bn) and Pfeiffer's adapters "
                f"(seq_bn), with {name} {required}"
            )
    after_norm, residual = bool(config.get("original_ln_before", False)), config.get("residual_before_ln", True)
    # With a bottleneck on the output itself both are that output.
    if residual is not True and (after_norm or residual is not False):
        raise Unsupported(
            f"residual_before_ln is {residual}: the adapter's output is added to another sum than the layer's output; "
            "accepted is true"
        )
    activation = _ACTIVATIONS.get(str(config.get("non_linearity")).lower())
    if activation is None:
        raise Unsupported(f"non_linearity is {config.get('non_linearity')}; accepted: {', '.join(_ACTIVATIONS)}")
    scale = config.get("scaling", 1.0)
    if not isinstance(scale, int | float):
        raise Unsupported(f"scaling is {scale}; accepted is a number")
    return AdapterForm(activation, float(scale), after_norm)


def _path(at: str, base: ImportBase) -> str | None:
    """Path of the base's linear layer that the adapters of a module follow."""
    around, _, last = at.rpartition(".")
    return layer_path(f"{around}.{_FOLLOWS[last]}" if last in _FOLLOWS else f"{at}.dense", base.layers.linear)


def _bottleneck(path: str, parts: Mapping[str, FloatArray], form: AdapterForm, base: ImportBase) -> Bottleneck:
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
    up, up_bias = np.float32(form.scale) * parts["up.weight"], np.float32(form.scale) * parts["up.bias"]
    return Bottleneck(parts["down.weight"], parts["down.bias"], up, up_bias, form.activation, form.after_norm)


def _head(folder: Path, trained: Path | None, base: ImportBase, options: ImportOptions) -> _FoundHead:
    width = base.layers.width
    if not (folder / HEAD_CONFIG_FILE).is_file():
        if options.task != "embedding":
            raise Unsupported(
                f"{folder} has no head; save it with `save_adapter(folder, name, with_head=True)`, or import it as an "
                "embedding by --task embedding"
            )
        settings, tail = embedding_settings(options, width, folder, trained)
        none = np.zeros((0, width), np.float32), np.zeros(0, np.float32)
        return _FoundHead(Head(*none, **HeadOf("embedding", (), settings).fields()), tail=tail)
    described = read_json(folder / HEAD_CONFIG_FILE)
    tensors = read_weights(folder, "model_head.safetensors", "pytorch_model_head.bin", _SAVE)
    config = described.get("config") or _plain(described, tensors)
    found = _HEAD_TYPES.get(str(config.get("head_type")))
    if found is None:
        raise Unsupported(
            f"the head's type is {config.get('head_type')}; accepted: {', '.join(_HEAD_TYPES)}. Heads of words are "
            "imported from checkpoints and from peft's adapters"
        )
    layers = [
        (tensors[name], tensors.get(f"{name.removesuffix('weight')}bias"))
        for name in sorted(tensors, key=_place)
        if name.endswith("weight")
    ]
    weight, bias = layers[-1] if layers else (np.zeros((0, 0), np.float32), None)
    if weight.ndim != _MATRIX or weight.shape[1] != width or len(layers) != config.get("layers"):
        raise InvalidArgument(f"the head differs from {HEAD_CONFIG_FILE}, or is not for this base")
    task = choose_task(found, len(weight), options, folder)
    named = described.get("label2id") or config.get("label2id")
    labels = sorted(named, key=named.__getitem__) if isinstance(named, dict) else None
    settings = settings_of(task, base, options, folder, trained)
    made = HeadOf(task, head_labels(task, options, labels, len(weight)), settings)
    head = Head(weight, bias if bias is not None else np.zeros(len(weight), np.float32), **made.fields())
    if task not in POOLED:
        if len(layers) != 1:
            raise Unsupported(f"the head has {len(layers)} layers on every token; accepted is 1 for a task of {task}")
        return _FoundHead(head, SavedHead(layers, "", "tokens"))
    reads: Literal["pooled", "first"] = "pooled" if config.get("use_pooler") else "first"
    saved = SavedHead(layers, str(config.get("activation_function")), reads)
    if len(layers) == 1 and config.get("use_pooler"):
        return _FoundHead(head, saved)
    return _FoundHead(head, saved, None, *_replaced_pooler(layers, config, base))


def _replaced_pooler(
    layers: Sequence[tuple[FloatArray, FloatArray | None]], config: Mapping[str, Any], base: ImportBase
) -> tuple[dict[str, LinearTerms], tuple[str, ...]]:
    """The first layer of a head as a difference of the base's pooler, by its path, and notes."""
    path = _POOLERS.get(str(config.get("activation_function")), "")
    pooler = base.layers.linear.get(path)
    replaces = len(layers) == _TWO_LAYERS and not config.get("use_pooler")
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
        return {}, ()
    positions = np.flatnonzero(difference)
    delta = sparse_delta(positions, difference.reshape(-1)[positions], pooler.shape)
    note = f"the head's first layer is carried as a difference of {path}, {len(positions)} values"
    return {path: LinearTerms(delta, shift)}, (note,)


def _plain(described: Mapping[str, Any], tensors: Mapping[str, FloatArray]) -> dict[str, Any]:
    """The configuration that the library would save for a head of one of transformers' own classes, given its name
    only.

    Raises:
        Unsupported: The head is of a task that cannot share an encoder.
    """
    named = str(described.get("model_class") or "")
    task = task_of_architecture(named)
    kinds = [kind for kind, of in _HEAD_TYPES.items() if of == task]
    if task != "unknown" and not kinds:
        raise Unsupported(f"the head is that of {named}: it is {sentence_of(task)}")
    if kinds and kinds[0] in ("tagging", "question_answering"):
        return {"head_type": kinds[0], "layers": 1}
    two = "pre_classifier.weight" in tensors
    return {
        "head_type": "classification", "layers": 2 if two else 1, "use_pooler": not two, "activation_function": "relu",
    }  # fmt: skip


def _place(name: str) -> tuple[list[int], bool]:
    """Order of a head's layers: heads.<name>.<index>.weight, or pre_classifier before classifier."""
    return [int(number) for number in re.findall(r"\.(\d+)\.", name)], not name.startswith("pre_")
