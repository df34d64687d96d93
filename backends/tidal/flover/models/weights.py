"""A decoder's weights in one layout for all families, and how each family's own names and layouts become it.

A layer's products are fused: `qkv` makes queries, keys and values, `up` of a gated layer first the gate and then what
it is multiplied with. Linear weights are [outputs, inputs].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.orders import gpt_neox_order, gptj_order
from tidal_client.extras import install_command

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Affine:
    """Weight and, where there is one, bias: of a linear layer [outputs, inputs] and [outputs], of a norm [width]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer.

    Attributes:
        attention_norm: before attention.
        qkv: queries of all heads, then keys, then values.
        query_norm: of each head's queries; None where the family has none.
        key_norm: of each head's keys.
        output: of attention.
        feed_norm: before the feed-forward part; None where it shares `attention_norm`.
        up: into the feed-forward part; of a gated one [2 * inner, width].
        down: out of it.
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
    """Of a whole decoder.

    Attributes:
        tokens: embeddings, [vocabulary, width].
        positions: embeddings, [positions, width]; None for rotary positions.
        layers: in their order.
        final_norm: before the head.
        head: None where the head's weight is `tokens`.
    """

    tokens: torch.Tensor
    positions: torch.Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: Affine
    head: Affine | None


def convert(state: State, form: DecoderForm, *, tied: bool) -> DecoderWeights:
    """A Hugging Face model's weights in the common layout.

    Args:
        state: the model's `state_dict()`.
        form: of the model.
        tied: whether the head's weight is the token embedding's.

    Raises:
        InvalidArgument: a weight is missing.
    """
    try:
        return _convert(state, form, tied)
    except KeyError as error:
        raise InvalidArgument(f"the model has no weight {error}, which a {form.family} has") from None


def _convert(state: State, form: DecoderForm, tied: bool) -> DecoderWeights:
    match form.family:
        case "gpt2":
            tokens, norm, head, layer = "transformer.wte", "transformer.ln_f", "lm_head", _gpt2
        case "gptj":
            tokens, norm, head, layer = "transformer.wte", "transformer.ln_f", "lm_head", _gptj
        case "gpt_neox":
            tokens, norm, head, layer = "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", _gpt_neox
            # Newer releases name the head as the other families do.
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
    at = f"transformer.h.{number}."

    def turned(name: str) -> Affine:
        # GPT-2 keeps [inputs, outputs].
        found = _affine(state, at + name)
        return Affine(found.weight.T, found.bias)

    return LayerWeights(
        attention_norm=_affine(state, f"{at}ln_1"),
        qkv=turned("attn.c_attn"),
        query_norm=None,
        key_norm=None,
        output=turned("attn.c_proj"),
        feed_norm=_affine(state, f"{at}ln_2"),
        up=turned("mlp.c_fc"),
        down=turned("mlp.c_proj"),
    )


def _gptj(state: State, form: DecoderForm, number: int) -> LayerWeights:
    at, order = f"transformer.h.{number}.", torch.from_numpy(gptj_order(form))

    def halved(name: str) -> torch.Tensor:
        return state[f"{at}attn.{name}.weight"][order]

    return LayerWeights(
        attention_norm=_affine(state, f"{at}ln_1"),
        qkv=Affine(torch.cat([halved("q_proj"), halved("k_proj"), state[f"{at}attn.v_proj.weight"]]), None),
        query_norm=None,
        key_norm=None,
        output=_affine(state, f"{at}attn.out_proj"),
        feed_norm=None,
        up=_affine(state, f"{at}mlp.fc_in"),
        down=_affine(state, f"{at}mlp.fc_out"),
    )


def _gpt_neox(state: State, form: DecoderForm, number: int) -> LayerWeights:
    at = f"gpt_neox.layers.{number}."
    fused, order = _affine(state, f"{at}attention.query_key_value"), torch.from_numpy(gpt_neox_order(form))
    return LayerWeights(
        attention_norm=_affine(state, f"{at}input_layernorm"),
        qkv=Affine(fused.weight[order], None if fused.bias is None else fused.bias[order]),
        query_norm=None,
        key_norm=None,
        output=_affine(state, f"{at}attention.dense"),
        feed_norm=_affine(state, f"{at}post_attention_layernorm"),
        up=_affine(state, f"{at}mlp.dense_h_to_4h"),
        down=_affine(state, f"{at}mlp.dense_4h_to_h"),
    )


def _llama(state: State, form: DecoderForm, number: int) -> LayerWeights:
    at = f"model.layers.{number}."
    return LayerWeights(
        attention_norm=_affine(state, f"{at}input_layernorm"),
        qkv=_joined(state, *(f"{at}self_attn.{name}_proj" for name in "qkv")),
        query_norm=_affine(state, f"{at}self_attn.q_norm") if form.head_norm else None,
        key_norm=_affine(state, f"{at}self_attn.k_norm") if form.head_norm else None,
        output=_affine(state, f"{at}self_attn.o_proj"),
        feed_norm=_affine(state, f"{at}post_attention_layernorm"),
        up=_joined(state, f"{at}mlp.gate_proj", f"{at}mlp.up_proj"),
        down=_affine(state, f"{at}mlp.down_proj"),
    )


def _affine(state: State, name: str) -> Affine:
    return Affine(state[f"{name}.weight"], state.get(f"{name}.bias"))


def _joined(state: State, *names: str) -> Affine:
    parts = [_affine(state, name) for name in names]
    biases = [part.bias for part in parts if part.bias is not None]
    return Affine(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


def save_weights(weights: DecoderWeights, path: Path, dtype: torch.dtype) -> None:
    """Write weights as one safetensors file, all in one type."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().to(dtype).contiguous() for name, tensor in named_tensors(weights)}, path)


def load_weights(path: Path, form: DecoderForm, device: torch.device | None = None) -> DecoderWeights:
    """Read what `save_weights` wrote, of the type that it was written in.

    Raises:
        Unsupported: safetensors is not installed.
        InvalidArgument: the file has other weights than the form asks for.
    """
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise Unsupported(
            f"decoders are read with safetensors, which is not installed: {install_command('build')}"
        ) from None
    found = load_file(path, device=str(device or "cpu"))

    def affine(name: str) -> Affine:
        return Affine(found[f"{name}.weight"], found.get(f"{name}.bias"))

    def perhaps(name: str) -> Affine | None:
        return affine(name) if f"{name}.weight" in found else None

    def layer(at: str) -> LayerWeights:
        return LayerWeights(
            attention_norm=affine(f"{at}.attention_norm"),
            qkv=affine(f"{at}.qkv"),
            query_norm=perhaps(f"{at}.query_norm"),
            key_norm=perhaps(f"{at}.key_norm"),
            output=affine(f"{at}.output"),
            feed_norm=perhaps(f"{at}.feed_norm"),
            up=affine(f"{at}.up"),
            down=affine(f"{at}.down"),
        )

    try:
        return DecoderWeights(
            tokens=found["tokens"],
            positions=found.get("positions"),
            layers=tuple(layer(f"layers.{number}") for number in range(form.layers)),
            final_norm=affine("final_norm"),
            head=perhaps("head"),
        )
    except KeyError as error:
        raise InvalidArgument(f"{path} has no weight {error}, which the model's form asks for") from None


def named_tensors(part: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of weights, with its place."""
    if isinstance(part, torch.Tensor):
        yield name, part
    elif isinstance(part, tuple):
        for number, each in enumerate(part):
            yield from named_tensors(each, f"{name}.{number}")
    elif is_dataclass(part):
        for field in fields(part):
            yield from named_tensors(getattr(part, field.name), f"{name}.{field.name}".lstrip("."))
