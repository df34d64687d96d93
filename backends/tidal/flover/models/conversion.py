"""Conversion of the weights of Hugging Face models to the common layout, see `tidal.flover.models.weights`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tidal.errors import InvalidArgument
from tidal.flover.form import DecoderForm, Experts
from tidal.flover.models.orders import gpt_neox_order, gptj_order
from tidal.flover.models.quantized import joined
from tidal.flover.models.weights import Affine, DecoderWeights, Dense, ExpertWeights, LayerWeights

# Weights of linear layers may be `Quantized`.
State = Mapping[str, Any]
# Names of an expert's gate, up and down projections in files, behind the name of its layer and with its number.
_EXPERTS = tuple(f"mlp.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
_MIXTRAL_EXPERTS = tuple(f"block_sparse_moe.experts.{{}}.{name}" for name in ("w1", "w3", "w2"))


def convert(state: State, form: DecoderForm, *, tied: bool) -> DecoderWeights:
    """Convert the weights of a Hugging Face model to the common layout.

    Args:
        state: The model's `state_dict()`.
        form: Architecture of the model.
        tied: Whether the head shares the weight of the token embeddings.

    Raises:
        InvalidArgument: A weight is missing.
    """
    parts = dict(converted_parts(state, form, tied=tied))
    layers = tuple(parts.pop(f"layers.{number}") for number in range(form.layers))
    return DecoderWeights(layers=layers, **parts)


def converted_parts(state: State, form: DecoderForm, *, tied: bool) -> Iterator[tuple[str, Any]]:
    """Convert one part after the other, so that no more of the model than one has to be in memory.

    Args:
        state: Weights of a Hugging Face model by name; a tensor may be read when it is requested.
        form: Architecture of the model.
        tied: Whether the head shares the weight of the token embeddings.

    Yields:
        Name and value of each field of `DecoderWeights`; of `layers`, `layers.0` and so on.

    Raises:
        InvalidArgument: A weight is missing.
    """
    match form.family:
        case "gpt2":
            tokens, norm, head, layer = "transformer.wte", "transformer.ln_f", "lm_head", _gpt2
        case "gptj":
            tokens, norm, head, layer = "transformer.wte", "transformer.ln_f", "lm_head", _gptj
        case "gpt_neox":
            tokens, norm, head, layer = "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", _gpt_neox
            # Newer releases of transformers name the head as in the other families.
            head = head if f"{head}.weight" in state else "lm_head"
        case "phi3":
            tokens, norm, head, layer = "model.embed_tokens", "model.norm", "lm_head", _phi3
        case _:
            tokens, norm, head, layer = "model.embed_tokens", "model.norm", "lm_head", _llama
    try:
        yield "tokens", state[f"{tokens}.weight"]
        yield "positions", state["transformer.wpe.weight"] if form.rotary is None else None
        for number in range(form.layers):
            yield f"layers.{number}", layer(state, form, number)
        yield "final_norm", _affine(state, norm)
        yield "head", None if tied else _dense(state, head)
    except KeyError as error:
        raise InvalidArgument(f"the model has no weight {error}, which {form.family} requires") from None


def _gpt2(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"transformer.h.{number}."

    def transposed(name: str) -> Dense:
        # GPT-2 stores [inputs, outputs].
        return Dense(state[f"{prefix}{name}.weight"].T, state.get(f"{prefix}{name}.bias"))

    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}ln_1"),
        qkv=transposed("attn.c_attn"),
        query_norm=None,
        key_norm=None,
        output=transposed("attn.c_proj"),
        feed_norm=_affine(state, f"{prefix}ln_2"),
        up=transposed("mlp.c_fc"),
        down=transposed("mlp.c_proj"),
    )


def _gptj(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix, order = f"transformer.h.{number}.", torch.from_numpy(gptj_order(form))

    def permuted(name: str) -> torch.Tensor:
        weight: torch.Tensor = state[f"{prefix}attn.{name}.weight"]
        return weight[order]

    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}ln_1"),
        qkv=Dense(torch.cat([permuted("q_proj"), permuted("k_proj"), state[f"{prefix}attn.v_proj.weight"]]), None),
        query_norm=None,
        key_norm=None,
        output=_dense(state, f"{prefix}attn.out_proj"),
        feed_norm=None,
        up=_dense(state, f"{prefix}mlp.fc_in"),
        down=_dense(state, f"{prefix}mlp.fc_out"),
    )


def _gpt_neox(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"gpt_neox.layers.{number}."
    fused, order = _affine(state, f"{prefix}attention.query_key_value"), torch.from_numpy(gpt_neox_order(form))
    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}input_layernorm"),
        qkv=Dense(fused.weight[order], None if fused.bias is None else fused.bias[order]),
        query_norm=None,
        key_norm=None,
        output=_dense(state, f"{prefix}attention.dense"),
        feed_norm=_affine(state, f"{prefix}post_attention_layernorm"),
        up=_dense(state, f"{prefix}mlp.dense_h_to_4h"),
        down=_dense(state, f"{prefix}mlp.dense_4h_to_h"),
    )


def _llama(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"model.layers.{number}."
    # What follows attention has the name of what precedes the feed-forward part where there is no other norm.
    before_feed = "pre_feedforward" if form.norms == "both" else "post_attention"
    before, after = form.norms != "after", form.norms != "before"
    mixture = form.layer_experts(number)
    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}input_layernorm") if before else None,
        qkv=_joined(state, *(f"{prefix}self_attn.{name}_proj" for name in "qkv")),
        query_norm=_affine(state, f"{prefix}self_attn.q_norm") if form.head_norm else None,
        key_norm=_affine(state, f"{prefix}self_attn.k_norm") if form.head_norm else None,
        output=_dense(state, f"{prefix}self_attn.o_proj"),
        feed_norm=_affine(state, f"{prefix}{before_feed}_layernorm") if before else None,
        up=None if mixture else _joined(state, f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"),
        down=None if mixture else _dense(state, f"{prefix}mlp.down_proj"),
        attention_after=_affine(state, f"{prefix}post_attention_layernorm") if after else None,
        feed_after=_affine(state, f"{prefix}post_feedforward_layernorm") if after else None,
        experts=None if mixture is None else _mixture(state, form, mixture, prefix),
    )


def _mixture(state: State, form: DecoderForm, mixture: Experts, prefix: str) -> ExpertWeights:
    routers = [state[f"{prefix}mlp.gate.weight"]]
    up, down = expert_layers(state, form.family, mixture.count, prefix)
    if mixture.shared_inner is not None:
        routers.append(state[f"{prefix}mlp.shared_expert_gate.weight"])
        up += (_joined(state, f"{prefix}mlp.shared_expert.gate_proj", f"{prefix}mlp.shared_expert.up_proj"),)
        down += (_dense(state, f"{prefix}mlp.shared_expert.down_proj"),)
    return ExpertWeights(Dense(joined(routers), None).floats(), up, down)


def expert_layers(state: State, family: str, count: int, prefix: str) -> tuple[tuple[Dense, ...], tuple[Dense, ...]]:
    """Return the first and second projections of the experts that a router chooses from.

    Args:
        state: Weights by name: all experts of a layer in one tensor, as modules of transformers 5 have them, or
            each by itself, as files do.
        family: Family of the model.
        count: Number of experts.
        prefix: Begin of the layer's names, with a dot at its end.

    Raises:
        KeyError: A weight is missing; contains its name.
    """
    fused = f"{prefix}mlp.experts."
    if f"{fused}gate_up_proj" in state:
        both = (state[f"{fused}{name}"] for name in ("gate_up_proj", "down_proj"))
        up, down = (tuple(Dense(weight, None) for weight in weights) for weights in both)
        return up, down
    names = _MIXTRAL_EXPERTS if family == "mixtral" else _EXPERTS
    each = [[f"{prefix}{name.format(number)}" for name in names] for number in range(count)]
    return tuple(_joined(state, *first) for *first, _ in each), tuple(_dense(state, last) for *_, last in each)


def _phi3(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"model.layers.{number}."
    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}input_layernorm"),
        qkv=_dense(state, f"{prefix}self_attn.qkv_proj"),
        query_norm=None,
        key_norm=None,
        output=_dense(state, f"{prefix}self_attn.o_proj"),
        feed_norm=_affine(state, f"{prefix}post_attention_layernorm"),
        up=_dense(state, f"{prefix}mlp.gate_up_proj"),
        down=_dense(state, f"{prefix}mlp.down_proj"),
    )


def _affine(state: State, name: str) -> Affine:
    return Affine(state[f"{name}.weight"], state.get(f"{name}.bias"))


def _dense(state: State, name: str) -> Dense:
    return Dense(state[f"{name}.weight"], state.get(f"{name}.bias"))


def _joined(state: State, *names: str) -> Dense:
    weights = [state[f"{name}.weight"] for name in names]
    biases = [bias for name in names if (bias := state.get(f"{name}.bias")) is not None]
    return Dense(joined(weights), torch.cat(biases) if biases else None)
