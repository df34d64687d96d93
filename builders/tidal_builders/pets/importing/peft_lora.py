"""LoRA as Hugging Face's peft saves it: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import FloatArray, Head, LinearTerms, LowRankDelta, NormTerms, TaskTerms
from tidal_builders.pets.importing.files import layer_path, read_json, read_weights
from tidal_builders.pets.importing.found import Base, Imported, Wishes, labels_of

CONFIG_FILE = "adapter_config.json"
_SAVE = "save it anew with `model.save_pretrained(folder)` of a current peft, which writes adapter_model.safetensors"
# What says where a difference is and how large, which is read below, or how it was trained, which is past.
_KNOWN = frozenset(
    (
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "lora_bias"),
        *("target_modules", "exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save", "task_type"),
        *("peft_type", "peft_version", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode"),
        *("init_lora_weights", "eva_config", "loftq_config", "lora_ga_config", "lora_dropout", "runtime_config"),
        *("megatron_core", "qalora_group_size"),  # have values also where they have no meaning
    )
)
# Initialisations after which the base's own weights are others.
_CHANGES_BASE = re.compile(r"pissa|olora|corda|loftq|lora_ga", re.IGNORECASE)
_HEADS = ("classifier", "score")
_PART = re.compile(r"(.*)\.(lora_A|lora_B)\.(weight|bias)")


def import_peft(folder: Path, base: Base, wishes: Wishes) -> Imported:
    """A task of a peft folder with LoRA and a classifier.

    Raises:
        InvalidArgument: a file is missing or wrong, or the shapes are not the base's.
        Unsupported: it changes what a task cannot; says what.
    """
    config = read_json(folder / CONFIG_FILE)
    _check(config)
    tensors = read_weights(folder, "adapter_model.safetensors", "adapter_model.bin", _SAVE)
    factors: dict[str, dict[str, FloatArray]] = {}
    scales: dict[str, float] = {}
    changed: dict[str, FloatArray] = {}
    head: dict[str, FloatArray] = {}
    for name, array in tensors.items():
        module, _, part = name.removeprefix("base_model.model.").rpartition(".")
        if module.rpartition(".")[2] in _HEADS and part in ("weight", "bias"):
            head[part] = array
        elif found := _PART.fullmatch(name.removeprefix("base_model.model.")):
            path = layer_path(found[1], base.layers.linear)
            if path is None:
                raise Unsupported(f"tensor '{name}' changes '{found[1]}', which is no linear layer of the base")
            factors.setdefault(path, {})[f"{found[2]}.{found[3]}"] = array
            scales[path] = _scale(config, found[1], name)
        elif not re.search(r"\.(modules_to_save|original_module)\.", name):  # copies of the head
            changed[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = array
    terms = TaskTerms(_head(head, folder, wishes), *_layers(factors, scales, changed, base))
    notes = (
        f"made for {config.get('base_model_name_or_path') or 'a base that it does not name'}: peft keeps no hash of "
        "its base, so only shapes were compared",
    )
    return Imported("lora", terms, Provenance(format="peft", source=str(folder), notes=notes))


def _check(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise Unsupported(f"peft_type is {kind}; accepted is LORA")
    if config.get("use_dora"):
        raise Unsupported("use_dora: DoRA scales whole columns of the merged weight, which is no low-rank difference")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and _CHANGES_BASE.search(start):
        raise Unsupported(
            f"init_lora_weights '{start}' changed the base's own weights; save it as plain LoRA, with "
            "`save_pretrained(folder, path_initial_model_for_weight_conversion=...)`"
        )
    for name, value in config.items():
        if value and name not in _KNOWN:
            raise Unsupported(f"{name} is set, which plain LoRA has not; accepted are options that leave it so")
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise InvalidArgument(f"bias is {config['bias']!r}; accepted: none, all, lora_only")


def _scale(config: Mapping[str, Any], module: str, name: str) -> float:
    """How much a module's difference counts: α / r, or α / √r, both by the patterns that name modules."""
    rank = _matching(config.get("rank_pattern"), module, config.get("r"))
    alpha = _matching(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(rank, int | float) or not isinstance(alpha, int | float) or rank <= 0:
        raise InvalidArgument(f"{CONFIG_FILE} gives no r and lora_alpha for '{name}'")
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _matching(patterns: Any, module: str, default: Any) -> Any:
    """The value of the first pattern that a module's name ends in."""
    try:
        return next((v for p, v in (patterns or {}).items() if re.match(rf"(.*\.)?({p})$", module)), default)
    except (re.error, AttributeError) as error:
        raise InvalidArgument(f"{CONFIG_FILE} has patterns that are none: {error}") from None


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
    factors: Mapping[str, Mapping[str, FloatArray]],
    scales: Mapping[str, float],
    changed: Mapping[str, FloatArray],
    base: Base,
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
    linears: dict[str, LinearTerms] = {}
    for path in sorted({*factors, *biases}):
        parts, outputs, inputs = factors.get(path), *base.layers.linear[path].shape
        bias, delta = biases.get(path), None
        if parts is not None:
            down, up = parts.get("lora_A.weight"), parts.get("lora_B.weight")
            if down is None or up is None or down.shape[1:] != (inputs,) or up.shape != (outputs, len(down)):
                raise InvalidArgument(
                    f"lora_A and lora_B of '{path}' are {[list(each.shape) for each in parts.values()]}; the base's "
                    f"layer takes [rank, {inputs}] and [{outputs}, rank]"
                )
            delta = LowRankDelta(down, up, scales[path])
            if "lora_B.bias" in parts:  # of lora_bias
                added = scales[path] * parts["lora_B.bias"]
                bias = added if bias is None else bias + added
        linears[path] = LinearTerms(delta, bias)
    return linears, norm
