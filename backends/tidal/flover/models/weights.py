"""Weights of a decoder in one layout for all families, and their conversion from Hugging Face.

Projections of a layer are fused: `qkv` yields queries, keys and values; `up` of a gated layer yields the gate and then
the values it is multiplied with. Linear weights are [outputs, inputs].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.form import DecoderForm
from tidal.flover.models.orders import gpt_neox_order, gptj_order
from tidal_client.extras import install_command

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Affine:
    """Weight and optional bias: of a linear layer [outputs, inputs] and [outputs], of a norm [width]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer.

    Attributes:
        attention_norm: Norm before attention.
        qkv: Projection to the queries of all heads, then keys, then values.
        query_norm: Norm of each head's queries; None: the family has none.
        key_norm: Norm of each head's keys; None: the family has none.
        output: Output projection of attention.
        feed_norm: Norm before the feed-forward part; None: it shares `attention_norm`.
        up: First projection of the feed-forward part; [2 * inner, width] if gated.
        down: Second projection of the feed-forward part.
    """

    attention_norm: Affine
    qkv: Affine
    query_norm: Affine | None
    key_norm: Affine | None
    output: Affine
    feed_norm: Affine | None
    up: Affine
    down: Affine


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Weights of a decoder.

    Attributes:
        tokens: Token embeddings, [vocabulary, width].
        positions: Position embeddings, [positions, width]; None: rotary positions.
        layers: Weights of the layers, in order.
        final_norm: Norm before the head.
        head: Projection to logits; None: its weight is `tokens`.
    """

    tokens: torch.Tensor
    positions: torch.Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: Affine
    head: Affine | None


def convert(state: State, form: DecoderForm, *, tied: bool) -> DecoderWeights:
    """Convert the weights of a Hugging Face model to the common layout.

    Args:
        state: The model's `state_dict()`.
        form: Architecture of the model.
        tied: Whether the head shares the weight of the token embeddings.

    Raises:
        InvalidArgument: A weight is missing.
    """
    try:
        return _convert(state, form, tied)
    except KeyError as error:
        raise InvalidArgument(f"the model has no weight {error}, which {form.family} requires") from None


def _convert(state: State, form: DecoderForm, tied: bool) -> DecoderWeights:
    match form.family:
        case "gpt2":
            tokens, norm, head, layer = "transformer.wte", "transformer.ln_f", "lm_head", _gpt2
        case "gptj":
            tokens, norm, head, layer = "transformer.wte", "transformer.ln_f", "lm_head", _gptj
        case "gpt_neox":
            tokens, norm, head, layer = "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", _gpt_neox
            # Newer releases of transformers name the head as in the other families.
            head = head if f"{head}.weight" in state else "lm_head"
        case _:
            tokens, norm, head, layer = "model.embed_tokens", "model.norm", "lm_head", _llama
    return DecoderWeights(
        tokens=state[f"{tokens}.weight"],
        positions=state["transformer.wpe.weight"] if form.rotary is None else None,
        layers=tuple(layer(state, form, number) for number in range(form.layers)),
        final_norm=_affine(state, norm),
        head=None if tied else _affine(state, head),
    )


def _gpt2(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"transformer.h.{number}."

    def transposed(name: str) -> Affine:
        # GPT-2 stores [inputs, outputs].
        affine = _affine(state, prefix + name)
        return Affine(affine.weight.T, affine.bias)

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
        return state[f"{prefix}attn.{name}.weight"][order]

    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}ln_1"),
        qkv=Affine(torch.cat([permuted("q_proj"), permuted("k_proj"), state[f"{prefix}attn.v_proj.weight"]]), None),
        query_norm=None,
        key_norm=None,
        output=_affine(state, f"{prefix}attn.out_proj"),
        feed_norm=None,
        up=_affine(state, f"{prefix}mlp.fc_in"),
        down=_affine(state, f"{prefix}mlp.fc_out"),
    )


def _gpt_neox(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"gpt_neox.layers.{number}."
    fused, order = _affine(state, f"{prefix}attention.query_key_value"), torch.from_numpy(gpt_neox_order(form))
    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}input_layernorm"),
        qkv=Affine(fused.weight[order], None if fused.bias is None else fused.bias[order]),
        query_norm=None,
        key_norm=None,
        output=_affine(state, f"{prefix}attention.dense"),
        feed_norm=_affine(state, f"{prefix}post_attention_layernorm"),
        up=_affine(state, f"{prefix}mlp.dense_h_to_4h"),
        down=_affine(state, f"{prefix}mlp.dense_4h_to_h"),
    )


def _llama(state: State, form: DecoderForm, number: int) -> LayerWeights:
    prefix = f"model.layers.{number}."
    return LayerWeights(
        attention_norm=_affine(state, f"{prefix}input_layernorm"),
        qkv=_joined(state, *(f"{prefix}self_attn.{name}_proj" for name in "qkv")),
        query_norm=_affine(state, f"{prefix}self_attn.q_norm") if form.head_norm else None,
        key_norm=_affine(state, f"{prefix}self_attn.k_norm") if form.head_norm else None,
        output=_affine(state, f"{prefix}self_attn.o_proj"),
        feed_norm=_affine(state, f"{prefix}post_attention_layernorm"),
        up=_joined(state, f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj"),
        down=_affine(state, f"{prefix}mlp.down_proj"),
    )


def _affine(state: State, name: str) -> Affine:
    return Affine(state[f"{name}.weight"], state.get(f"{name}.bias"))


def _joined(state: State, *names: str) -> Affine:
    parts = [_affine(state, name) for name in names]
    biases = [part.bias for part in parts if part.bias is not None]
    return Affine(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


def save_weights(weights: DecoderWeights, path: Path, dtype: torch.dtype) -> None:
    """Write weights to one safetensors file, all in one type."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().to(dtype).contiguous() for name, tensor in named_tensors(weights)}, path)


def load_weights(path: Path, form: DecoderForm, device: torch.device | None = None) -> DecoderWeights:
    """Read weights written by `save_weights`, in the type of the file.

    Args:
        path: The safetensors file.
        form: Architecture of the decoder.
        device: Device to load to; None: the CPU.

    Raises:
        Unsupported: safetensors is not installed.
        InvalidArgument: A weight of the architecture is missing.
    """
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise Unsupported(
            f"loading a decoder requires safetensors, which is not installed: {install_command('build')}"
        ) from None
    tensors = load_file(path, device=str(device or "cpu"))

    def affine(name: str) -> Affine:
        return Affine(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def optional(name: str) -> Affine | None:
        return affine(name) if f"{name}.weight" in tensors else None

    def layer(prefix: str) -> LayerWeights:
        return LayerWeights(
            attention_norm=affine(f"{prefix}.attention_norm"),
            qkv=affine(f"{prefix}.qkv"),
            query_norm=optional(f"{prefix}.query_norm"),
            key_norm=optional(f"{prefix}.key_norm"),
            output=affine(f"{prefix}.output"),
            feed_norm=optional(f"{prefix}.feed_norm"),
            up=affine(f"{prefix}.up"),
            down=affine(f"{prefix}.down"),
        )

    try:
        return DecoderWeights(
            tokens=tensors["tokens"],
            positions=tensors.get("positions"),
            layers=tuple(layer(f"layers.{number}") for number in range(form.layers)),
            final_norm=affine("final_norm"),
            head=optional("head"),
        )
    except KeyError as error:
        raise InvalidArgument(f"{path} has no weight {error}, which the model's architecture requires") from None


def named_tensors(part: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor with its dotted name."""
    if isinstance(part, torch.Tensor):
        yield name, part
    elif isinstance(part, tuple):
        for number, each in enumerate(part):
            yield from named_tensors(each, f"{name}.{number}")
    elif is_dataclass(part):
        for field in fields(part):
            yield from named_tensors(getattr(part, field.name), f"{name}.{field.name}".lstrip("."))
