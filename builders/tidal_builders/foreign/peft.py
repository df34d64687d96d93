"""Reads LoRA adapters that Hugging Face's peft saved as `adapter_config.json` and `adapter_model.safetensors`."""

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
from tidal_builders.foreign.recognise import Task, sentence_of, task_of_architecture

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_SAVE = "save it again with `model.save_pretrained(folder)` of a current peft, which writes adapter_model.safetensors"
# Options that define the differences, which are read below, or that were only used in training.
_KNOWN = frozenset(
    (
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "lora_bias"),
        *("target_modules", "exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save", "task_type"),
        *("peft_type", "peft_version", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode"),
        *("init_lora_weights", "eva_config", "loftq_config", "lora_ga_config", "lora_dropout", "runtime_config"),
        *("megatron_core", "qalora_group_size"),  # set even if they have no effect
    )
)
# Initialisations that change the base's own weights.
_CHANGES_BASE = re.compile(r"pissa|olora|corda|loftq|lora_ga", re.IGNORECASE)
_PART = re.compile(r"(.*)\.(lora_A|lora_B)\.(weight|bias)")
_EMBEDDING = re.compile(r"(.*)\.lora_embedding_[AB]")
# Task of an adapter by its task_type.
_TASK_TYPES: dict[str, Task] = {
    "SEQ_CLS": "classification", "TOKEN_CLS": "token_classification", "CAUSAL_LM": "text_generation",
    "SEQ_2_SEQ_LM": "seq2seq", "QUESTION_ANS": "question_answering", "FEATURE_EXTRACTION": "embedding",
}  # fmt: skip
# `PeftModelForQuestionAnswering.forward` has an argument `token_type_ids` that it does not pass on.
_UNTYPED = "QUESTION_ANS"
# Prefix that peft adds to the names of the model.
PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class PeftLora:
    """A LoRA adapter.

    Attributes:
        deltas: Low-rank differences by the path of the linear layer.
        biases: Biases that are added to the outputs of such layers (`lora_bias`), by the same path.
        others: All other trained tensors by their name in the model.
        base: Folder or Hugging Face id of the model that it was trained on; "" if the folder names none.
        task: Task that it was trained for; "unknown" if the folder does not name one.
        token_types: Whether peft passes token types to the model: its class for QUESTION_ANS drops them.
    """

    deltas: dict[str, LowRankDelta]
    biases: dict[str, FloatArray]
    others: dict[str, FloatArray]
    base: str
    task: Task
    token_types: bool


def read_peft_lora(folder: Path, layers: Mapping[str, tuple[int, int]], *, transposed: bool = False) -> PeftLora:
    """Read the folder of a LoRA adapter.

    Args:
        folder: Folder with both files.
        layers: Numbers of outputs and inputs of the linear layers that may be changed, by path, which is the end of
            their name in peft's model.
        transposed: Whether the model stores weights as [inputs, outputs] (`fan_in_fan_out`), which is irrelevant here.

    Raises:
        InvalidArgument: A file is missing or wrong, or the shapes are not those of the base.
        Unsupported: It is not plain LoRA, or changes another layer; names what it is.
    """
    config = read_json(folder / CONFIG_FILE)
    _check(config, _KNOWN | {"fan_in_fan_out"} if transposed else _KNOWN)
    parts: dict[str, dict[str, FloatArray]] = {}
    others: dict[str, FloatArray] = {}
    for name, array in read_weights(folder, WEIGHTS_FILE, "adapter_model.bin", _SAVE).items():
        inside = name.removeprefix(PEFT_PREFIX)
        if embedding := _EMBEDDING.fullmatch(inside):
            raise Unsupported(
                f"'{embedding[1]}' is LoRA on an embedding, which tasks cannot change; train with target_modules that "
                "name no embedding"
            )
        if found := _PART.fullmatch(inside):
            parts.setdefault(found[1], {})[f"{found[2]}.{found[3]}"] = array
        elif not re.search(r"\.(modules_to_save|original_module)\.", name):  # copies of others
            others[inside.replace(".base_layer.", ".")] = array
    deltas: dict[str, LowRankDelta] = {}
    biases: dict[str, FloatArray] = {}
    for module, found_parts in parts.items():
        path, scale = layer_path(module, layers), _scale(config, module)
        if path is None:
            raise Unsupported(f"'{module}' is changed, but it is not a linear layer of the base that tasks may change")
        deltas[path] = _delta(path, found_parts, layers[path], scale)
        if "lora_B.bias" in found_parts:
            biases[path] = scale * found_parts["lora_B.bias"]
    base, token_types = str(config.get("base_model_name_or_path") or ""), config.get("task_type") != _UNTYPED
    return PeftLora(deltas, biases, others, base, _task(config), token_types)


def require_task(found: PeftLora, folder: Path, wanted: Task) -> None:
    """Refuse an adapter for another task.

    Args:
        found: The adapter.
        folder: Its folder, for the error.
        wanted: The task that is accepted.

    Raises:
        Unsupported: It was trained for another task; names it.
    """
    if found.task not in (wanted, "unknown"):
        raise Unsupported(f"{folder} is an adapter of {sentence_of(found.task)}")


def _task(config: Mapping[str, Any]) -> Task:
    kind, mapping = config.get("task_type"), config.get("auto_mapping")
    if kind:
        return _TASK_TYPES.get(str(kind), "unknown")
    # Without a task_type peft stores the class of the model.
    architecture = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    return task_of_architecture(str(architecture or ""))


def _check(config: Mapping[str, Any], known: frozenset[str]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise Unsupported(f"peft_type is {kind}; accepted is LORA")
    if config.get("use_dora"):
        raise Unsupported(
            "use_dora: DoRA scales whole columns of the merged weight, which is not a low-rank difference"
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and _CHANGES_BASE.search(start):
        raise Unsupported(
            f"init_lora_weights '{start}' changed the base's own weights; save it as plain LoRA, with "
            "`save_pretrained(folder, path_initial_model_for_weight_conversion=...)`"
        )
    for name, value in config.items():
        if value and name not in known:
            raise Unsupported(f"{name} is set, which plain LoRA does not have; accepted are options of plain LoRA")
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise InvalidArgument(f"bias is {config['bias']!r}; accepted: none, all, lora_only")


def _delta(path: str, parts: Mapping[str, FloatArray], shape: tuple[int, int], scale: float) -> LowRankDelta:
    down, up = parts.get("lora_A.weight"), parts.get("lora_B.weight")
    outputs, inputs = shape
    if down is None or up is None or down.shape[1:] != (inputs,) or up.shape != (outputs, len(down)):
        shapes = [list(each.shape) for each in parts.values()]
        raise InvalidArgument(
            f"lora_A and lora_B of '{path}' are {shapes}; expected [rank, {inputs}] and [{outputs}, rank]"
        )
    return LowRankDelta(down, up, scale)


def _scale(config: Mapping[str, Any], module: str) -> float:
    """Factor of a module's difference: α / r, or α / √r; patterns may set α and r per module."""
    rank = _matching(config.get("rank_pattern"), module, config.get("r"))
    alpha = _matching(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if not isinstance(rank, int | float) or not isinstance(alpha, int | float) or rank <= 0:
        raise InvalidArgument(f"{CONFIG_FILE} has no valid r and lora_alpha for '{module}'")
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _matching(patterns: Any, module: str, default: Any) -> Any:
    """Value of the first pattern that matches the end of a module's name."""
    try:
        return next((v for p, v in (patterns or {}).items() if re.match(rf"(.*\.)?({p})$", module)), default)
    except (re.error, AttributeError) as error:
        raise InvalidArgument(f"{CONFIG_FILE} has invalid patterns: {error}") from None
