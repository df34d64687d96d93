"""Architectures of Hugging Face models as forms: one table of families, and what is read from configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from tidal.errors import InvalidArgument
from tidal.flover.form import Activation, DecoderForm, Experts, Family, RopeScaling, Rotary

_GATED: Mapping[str, Any] = {"norm": "rms", "gated": True}
_GEMMA: Mapping[str, Any] = {**_GATED, "norms": "both", "norm_offset": 1.0}
# What a family fixes of `DecoderForm`.
_FAMILIES: Mapping[Family, Mapping[str, Any]] = {
    "gpt2": {"norm": "layer"},
    "gptj": {"norm": "layer", "parallel": True, "shared_norm": True},
    "gpt_neox": {"norm": "layer"},
    "llama": _GATED,
    "mistral": _GATED,
    "phi3": _GATED,
    "qwen2": _GATED,
    "qwen3": {**_GATED, "head_norm": True},
    "gemma2": _GEMMA,
    "gemma3_text": {**_GEMMA, "head_norm": True},
    "olmo2": {**_GATED, "norms": "after", "head_norm": True, "wide_norm": True},
    "mixtral": _GATED,
    "qwen2_moe": _GATED,
    "qwen3_moe": {**_GATED, "head_norm": True},
    "olmoe": {**_GATED, "head_norm": True, "wide_norm": True},
}
# Families with mixtures of experts.
MIXTURES: tuple[Family, ...] = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
_GEMMAS = ("gemma2", "gemma3_text")
_ACTIVATION_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
# Fields of which only the usual value is supported; null is the usual one too.
_CAUSAL = {"use_bidirectional_attention": False}
_REQUIRED_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    "gemma2": _CAUSAL,
    "gemma3_text": {**_CAUSAL, "attn_logit_softcapping": None},  # transformers reads it, but does not apply it
    "olmoe": {"clip_qkv": None},
}
# Parts of models that are not supported, by a field of their configurations.
_UNSUPPORTED_PARTS = {
    "vision_config": "a multimodal model; its text part alone is accepted where it is one of these",
    "audio_config": "a multimodal model; its text part alone is accepted where it is one of these",
    "n_routed_experts": "a mixture of experts whose router chooses by other scores than their softmax, or by groups",
    **dict.fromkeys(("num_local_experts", "num_experts"), "a mixture of experts of another form"),
    "kv_lora_rank": "its attention compresses keys and values (MLA)",
}
_ROPE_KINDS = "default, dynamic, linear, llama3, yarn, longrope"


def form_of(config: Any) -> DecoderForm:
    """Return the architecture of a Hugging Face model.

    Args:
        config: Configuration of the model, as `transformers` loads it.

    Raises:
        InvalidArgument: The family or a variant is not supported; names the field, its value and what is accepted.
    """
    family = config.model_type
    if family not in _FAMILIES:
        parts = dict.fromkeys(part for field, part in _UNSUPPORTED_PARTS.items() if getattr(config, field, None))
        reason = f": it is {', and '.join(parts)}" if parts else ""
        raise InvalidArgument(f"model_type '{family}' is not supported{reason}; accepted: {', '.join(_FAMILIES)}")
    for field, accepted in _REQUIRED_FIELDS.get(family, {}).items():
        if (value := getattr(config, field, None)) not in (None, accepted):
            raise InvalidArgument(f"the model's configuration has {field}: {value}; accepted is {accepted}")
    heads, width = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or width // heads
    more = dict(_FAMILIES[family])
    if family == "gpt_neox":
        more["parallel"] = config.use_parallel_residual
    if family in _GEMMAS:
        more |= {
            "embedding_scale": math.sqrt(width),
            "score_scale": config.query_pre_attn_scalar**-0.5,
            "score_cap": config.attn_logit_softcapping,
            "logit_cap": config.final_logit_softcapping,
        }
    rotary, local_rotary = _rotary(config, head_dim)
    return DecoderForm(
        family=family,
        vocabulary=config.vocab_size,
        layers=config.num_hidden_layers,
        width=width,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        inner=getattr(config, "intermediate_size", None) or config.n_inner or 4 * width,
        positions=config.max_position_embeddings,
        rotary=rotary,
        local_rotary=local_rotary,
        windows=_windows(config),
        epsilon=next(
            getattr(config, name)
            for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
            if hasattr(config, name)
        ),
        activation=_activation(config),
        experts=_experts(config),
        **more,
    )


def _experts(config: Any) -> Experts | None:
    """The mixture of experts; None if no layer has one."""
    family, count = config.model_type, getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0)
    if family not in MIXTURES:
        return None
    every, without = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    layers = [each for each in range(config.num_hidden_layers) if each not in without and (each + 1) % every == 0]
    if not count or not layers:
        return None
    if not 1 <= (chosen := config.num_experts_per_tok) <= count:
        raise InvalidArgument(
            f"the model's configuration has num_experts_per_tok: {chosen}; accepted are 1 to {count}, its experts"
        )
    return Experts(
        count=count,
        chosen=chosen,
        inner=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        normalised=family == "mixtral" or config.norm_topk_prob,
        shared_inner=getattr(config, "shared_expert_intermediate_size", None),
        layers=tuple(layers),
    )


def _activation(config: Any) -> Activation:
    names = ("hidden_activation", "hidden_act", "activation_function")
    given = next(getattr(config, name) for name in names if hasattr(config, name))
    activation: Activation = _ACTIVATION_ALIASES.get(given, given)
    if activation not in get_args(Activation):
        raise InvalidArgument(
            f"the model's configuration has the activation '{activation}'; accepted: {', '.join(get_args(Activation))}"
        )
    return activation


def _windows(config: Any) -> tuple[int | None, ...]:
    """Number of last tokens that each layer attends to; empty if each attends to all of them."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if window is None:
        return ()
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    if others := set(kinds) - {"sliding_attention", "full_attention"}:
        raise InvalidArgument(
            f"the model's configuration has layer_types: {min(others)}; accepted: sliding_attention, full_attention"
        )
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _rotary(config: Any, head_dim: int) -> tuple[Rotary | None, Rotary | None]:
    """Rotary positions of all layers, or of those without a window and of those with one."""
    if config.model_type == "gpt2":
        return None, None
    if config.model_type == "gptj":
        return Rotary(dims=config.rotary_dim, theta=10000.0), None
    rope = config.rope_parameters
    if "sliding_attention" not in rope:
        return _one_rotary(config, rope, head_dim), None
    return tuple(_one_rotary(config, rope[kind], head_dim) for kind in ("full_attention", "sliding_attention"))  # type: ignore[return-value]


def _one_rotary(config: Any, rope: Mapping[str, Any], head_dim: int) -> Rotary:
    kind, scaling = rope.get("rope_type", "default"), None
    match kind:
        case "default" | "dynamic":  # dynamic: changes frequencies beyond `max_position_embeddings` only
            pass
        case "linear":
            scaling = RopeScaling(kind="linear", factor=rope["factor"])
        case "llama3":
            scaling = RopeScaling(
                kind="llama3",
                factor=rope["factor"],
                low=rope["low_freq_factor"],
                high=rope["high_freq_factor"],
                original=rope["original_max_position_embeddings"],
            )
        case "yarn":
            original = rope["original_max_position_embeddings"]
            factor = rope.get("factor") or config.max_position_embeddings / original
            scaling = RopeScaling(
                kind="yarn",
                factor=factor,
                low=rope.get("beta_slow") or 1,
                high=rope.get("beta_fast") or 32,
                original=original,
                magnitude=_yarn_magnitude(rope, factor),
                whole=rope.get("truncate", True),
            )
        case "longrope":
            original = rope["original_max_position_embeddings"]
            factor = rope.get("factor") or config.max_position_embeddings / original
            scaling = RopeScaling(
                kind="longrope",
                factor=max(factor, 1.0),
                original=original,
                magnitude=_longrope_magnitude(rope, factor, original),
                short=tuple(rope["short_factor"]),
                long=tuple(rope["long_factor"]),
            )
        case _:
            raise InvalidArgument(f"the model's configuration has rope_type '{kind}'; accepted: {_ROPE_KINDS}")
    dims = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    try:
        return Rotary(dims=dims, theta=rope["rope_theta"], scaling=scaling)
    except ValidationError as error:
        raise InvalidArgument(f"the model's configuration has rope_type '{kind}': {error.errors()[0]['msg']}") from None


def _longrope_magnitude(rope: Mapping[str, Any], factor: float, original: int) -> float:
    """Factor of queries and keys, sqrt(1 + ln(factor) / ln(length of training)) unless the configuration has one."""
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _yarn_magnitude(rope: Mapping[str, Any], factor: float) -> float:
    """Factor of queries and keys, 0.1 ln(factor) + 1 (YaRN, equation 22) unless the configuration has another one."""
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    grown = math.log(factor) if factor > 1 else 0.0
    if (part := rope.get("mscale")) and (whole := rope.get("mscale_all_dim")):
        return float((0.1 * part * grown + 1) / (0.1 * whole * grown + 1))
    return 0.1 * grown + 1
