"""LoRA as Hugging Face's peft saves it: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument, Unsupported
from tidal.tasks.low_rank import LowRankDelta
from tidal.tasks.stored import FloatArray
from tidal_builders.foreign.files import layer_path, read_json, read_weights

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
_PART = re.compile(r"(.*)\.(lora_A|lora_B)\.(weight|bias)")
_AROUND = "base_model.model."


@dataclass(frozen=True, slots=True)
class PeftLora:
    """What a folder holds.

    Attributes:
        deltas: low-rank differences by the path of the linear layer.
        biases: what is added to such a layer's output beside them (`lora_bias`), by the same path.
        others: every other tensor that was trained, as it is afterwards, by its name in the model.
        note: what is to be said of where it came from.
    """

    deltas: dict[str, LowRankDelta]
    biases: dict[str, FloatArray]
    others: dict[str, FloatArray]
    note: str


def read_peft_lora(folder: Path, layers: Mapping[str, tuple[int, int]], *, turned: bool = False) -> PeftLora:
    """Read a folder.

    Args:
        folder: with both files.
        layers: outputs and inputs of the linear layers that may be changed, by path: the end of the name that peft's
            model has for them.
        turned: whether the model keeps weights as [inputs, outputs] (`fan_in_fan_out`), which changes nothing here.

    Raises:
        InvalidArgument: a file is missing or wrong, or the shapes are not the base's.
        Unsupported: it is no plain LoRA, or changes another layer; says what it is.
    """
    config = read_json(folder / CONFIG_FILE)
    _check(config, _KNOWN | {"fan_in_fan_out"} if turned else _KNOWN)
    parts: dict[str, dict[str, FloatArray]] = {}
    others: dict[str, FloatArray] = {}
    for name, array in read_weights(folder, "adapter_model.safetensors", "adapter_model.bin", _SAVE).items():
        inside = name.removeprefix(_AROUND)
        if found := _PART.fullmatch(inside):
            parts.setdefault(found[1], {})[f"{found[2]}.{found[3]}"] = array
        elif not re.search(r"\.(modules_to_save|original_module)\.", name):  # copies of others
            others[inside.replace(".base_layer.", ".")] = array
    deltas: dict[str, LowRankDelta] = {}
    biases: dict[str, FloatArray] = {}
    for module, found_parts in parts.items():
        path, scale = layer_path(module, layers), _scale(config, module)
        if path is None:
            raise Unsupported(f"'{module}' is changed, which is no linear layer of the base that tasks may change")
        deltas[path] = _delta(path, found_parts, layers[path], scale)
        if "lora_B.bias" in found_parts:
            biases[path] = scale * found_parts["lora_B.bias"]
    named = config.get("base_model_name_or_path") or "a base that it does not name"
    return PeftLora(
        deltas, biases, others, f"made for {named}: peft keeps no hash of its base, so only shapes were compared"
    )


def _check(config: Mapping[str, Any], known: frozenset[str]) -> None:
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
        if value and name not in known:
            raise Unsupported(f"{name} is set, which plain LoRA has not; accepted are options that leave it so")
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise InvalidArgument(f"bias is {config['bias']!r}; accepted: none, all, lora_only")


def _delta(path: str, parts: Mapping[str, FloatArray], shape: tuple[int, int], scale: float) -> LowRankDelta:
    down, up = parts.get("lora_A.weight"), parts.get("lora_B.weight")
    outputs, inputs = shape
    if down is None or up is None or down.shape[1:] != (inputs,) or up.shape != (outputs, len(down)):
        shapes = [list(each.shape) for each in parts.values()]
        raise InvalidArgument(
            f"lora_A and lora_B of '{path}' are {shapes}; the base's layer takes [rank, {inputs}] and [{outputs}, rank]"
        )
    return LowRankDelta(down, up, scale)


def _scale(config: Mapping[str, Any], module: str) -> float:
    """How much a module's difference counts: α / r, or α / √r, both by the patterns that name modules."""
    rank = _matching(config.get("rank_pattern"), module, config.get("r"))
    alpha = _matching(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(rank, int | float) or not isinstance(alpha, int | float) or rank <= 0:
        raise InvalidArgument(f"{CONFIG_FILE} gives no r and lora_alpha for '{module}'")
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _matching(patterns: Any, module: str, default: Any) -> Any:
    """The value of the first pattern that a module's name ends in."""
    try:
        return next((v for p, v in (patterns or {}).items() if re.match(rf"(.*\.)?({p})$", module)), default)
    except (re.error, AttributeError) as error:
        raise InvalidArgument(f"{CONFIG_FILE} has patterns that are none: {error}") from None
