"""The linear layers of each family that tasks may change, and their slices of the fused projections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidal.flover.form import DecoderForm, Projection
from tidal.flover.models.orders import Order, gpt_neox_order, gptj_order


@dataclass(frozen=True, slots=True)
class LayerSlice:
    """A linear layer of the source model as a slice of a fused projection, see `LayerWeights`.

    Attributes:
        layer: Index of the decoder's layer.
        projection: Projection that contains the linear layer.
        begin: Index of the linear layer's first output in the projection.
        outputs: Number of outputs of the linear layer.
        inputs: Number of inputs of both.
        order: Permutation of the linear layer's outputs to the common layout, [outputs]; None: unchanged.
    """

    layer: int
    projection: Projection
    begin: int
    outputs: int
    inputs: int
    order: Order | None = None


def layer_slices(form: DecoderForm) -> dict[str, LayerSlice]:
    """Return the slice of each linear layer by its path in Hugging Face's inner model, such as `h.0.attn.c_attn`."""
    by_layer = {"gpt2": _gpt2, "gptj": _gptj, "gpt_neox": _gpt_neox, "phi3": _phi3}.get(form.family, _llama)
    return {path: part for layer in range(form.layers) for path, part in by_layer(form, layer)}


def projection_sizes(form: DecoderForm) -> dict[Projection, tuple[int, int]]:
    """Return the numbers of inputs and outputs of a layer's projections."""
    attended = form.heads * form.head_dim
    return {
        "qkv": (form.width, attended + 2 * form.kv_width),
        "output": (attended, form.width),
        "up": (form.width, (2 if form.gated else 1) * form.inner),
        "down": (form.inner, form.width),
    }


def _gpt2(form: DecoderForm, layer: int) -> Iterator[tuple[str, LayerSlice]]:
    prefix = f"h.{layer}"
    yield f"{prefix}.attn.c_attn", _whole(form, layer, "qkv")
    yield f"{prefix}.attn.c_proj", _whole(form, layer, "output")
    yield f"{prefix}.mlp.c_fc", _whole(form, layer, "up")
    yield f"{prefix}.mlp.c_proj", _whole(form, layer, "down")


def _gptj(form: DecoderForm, layer: int) -> Iterator[tuple[str, LayerSlice]]:
    prefix, order = f"h.{layer}", gptj_order(form)
    for number, (name, own) in enumerate({"q_proj": order, "k_proj": order, "v_proj": None}.items()):
        yield f"{prefix}.attn.{name}", LayerSlice(layer, "qkv", number * form.width, form.width, form.width, own)
    yield f"{prefix}.attn.out_proj", _whole(form, layer, "output")
    yield f"{prefix}.mlp.fc_in", _whole(form, layer, "up")
    yield f"{prefix}.mlp.fc_out", _whole(form, layer, "down")


def _gpt_neox(form: DecoderForm, layer: int) -> Iterator[tuple[str, LayerSlice]]:
    prefix = f"layers.{layer}"
    yield f"{prefix}.attention.query_key_value", _whole(form, layer, "qkv", gpt_neox_order(form))
    yield f"{prefix}.attention.dense", _whole(form, layer, "output")
    yield f"{prefix}.mlp.dense_h_to_4h", _whole(form, layer, "up")
    yield f"{prefix}.mlp.dense_4h_to_h", _whole(form, layer, "down")


def _llama(form: DecoderForm, layer: int) -> Iterator[tuple[str, LayerSlice]]:
    prefix, begin = f"layers.{layer}", 0
    for name, outputs in (("q", form.heads * form.head_dim), ("k", form.kv_width), ("v", form.kv_width)):
        yield f"{prefix}.self_attn.{name}_proj", LayerSlice(layer, "qkv", begin, outputs, form.width)
        begin += outputs
    yield f"{prefix}.self_attn.o_proj", _whole(form, layer, "output")
    if form.layer_experts(layer) is not None:
        return
    yield f"{prefix}.mlp.gate_proj", LayerSlice(layer, "up", 0, form.inner, form.width)
    yield f"{prefix}.mlp.up_proj", LayerSlice(layer, "up", form.inner, form.inner, form.width)
    yield f"{prefix}.mlp.down_proj", _whole(form, layer, "down")


def _phi3(form: DecoderForm, layer: int) -> Iterator[tuple[str, LayerSlice]]:
    prefix = f"layers.{layer}"
    yield f"{prefix}.self_attn.qkv_proj", _whole(form, layer, "qkv")
    yield f"{prefix}.self_attn.o_proj", _whole(form, layer, "output")
    yield f"{prefix}.mlp.gate_up_proj", _whole(form, layer, "up")
    yield f"{prefix}.mlp.down_proj", _whole(form, layer, "down")


def _whole(form: DecoderForm, layer: int, projection: Projection, order: Order | None = None) -> LayerSlice:
    inputs, outputs = projection_sizes(form)[projection]
    return LayerSlice(layer, projection, 0, outputs, inputs, order)
