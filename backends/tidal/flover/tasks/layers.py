"""The linear layers of each family that tasks may change, and where their outputs lie in the common layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidal.flover.models.form import DecoderForm, Product
from tidal.flover.models.orders import Order, gpt_neox_order, gptj_order


@dataclass(frozen=True, slots=True)
class Place:
    """A linear layer of the source model within a product of the common layout, see `LayerWeights`.

    Attributes:
        layer: number of the decoder's layer.
        product: of that.
        begin: the product's output at which the linear layer's begin.
        outputs: of the linear layer.
        inputs: of both.
        order: which of the linear layer's outputs each one is, [outputs]; None: they are in their own order.
    """

    layer: int
    product: Product
    begin: int
    outputs: int
    inputs: int
    order: Order | None = None


def places(form: DecoderForm) -> dict[str, Place]:
    """By path, as Hugging Face names it without the name of the model around it: `h.0.attn.c_attn`."""
    by_layer = {"gpt2": _gpt2, "gptj": _gptj, "gpt_neox": _gpt_neox}.get(form.family, _llama)
    return {path: place for layer in range(form.layers) for path, place in by_layer(form, layer)}


def product_sizes(form: DecoderForm) -> dict[Product, tuple[int, int]]:
    """Inputs and outputs of a layer's products."""
    attended = form.heads * form.head_dim
    return {
        "qkv": (form.width, attended + 2 * form.kv_width),
        "output": (attended, form.width),
        "up": (form.width, (2 if form.gated else 1) * form.inner),
        "down": (form.inner, form.width),
    }


def _gpt2(form: DecoderForm, layer: int) -> Iterator[tuple[str, Place]]:
    at = f"h.{layer}"
    yield f"{at}.attn.c_attn", _whole(form, layer, "qkv")
    yield f"{at}.attn.c_proj", _whole(form, layer, "output")
    yield f"{at}.mlp.c_fc", _whole(form, layer, "up")
    yield f"{at}.mlp.c_proj", _whole(form, layer, "down")


def _gptj(form: DecoderForm, layer: int) -> Iterator[tuple[str, Place]]:
    at, order = f"h.{layer}", gptj_order(form)
    for number, (name, own) in enumerate({"q_proj": order, "k_proj": order, "v_proj": None}.items()):
        yield f"{at}.attn.{name}", Place(layer, "qkv", number * form.width, form.width, form.width, own)
    yield f"{at}.attn.out_proj", _whole(form, layer, "output")
    yield f"{at}.mlp.fc_in", _whole(form, layer, "up")
    yield f"{at}.mlp.fc_out", _whole(form, layer, "down")


def _gpt_neox(form: DecoderForm, layer: int) -> Iterator[tuple[str, Place]]:
    at = f"layers.{layer}"
    yield f"{at}.attention.query_key_value", _whole(form, layer, "qkv", gpt_neox_order(form))
    yield f"{at}.attention.dense", _whole(form, layer, "output")
    yield f"{at}.mlp.dense_h_to_4h", _whole(form, layer, "up")
    yield f"{at}.mlp.dense_4h_to_h", _whole(form, layer, "down")


def _llama(form: DecoderForm, layer: int) -> Iterator[tuple[str, Place]]:
    at, begin = f"layers.{layer}", 0
    for name, outputs in (("q", form.heads * form.head_dim), ("k", form.kv_width), ("v", form.kv_width)):
        yield f"{at}.self_attn.{name}_proj", Place(layer, "qkv", begin, outputs, form.width)
        begin += outputs
    yield f"{at}.self_attn.o_proj", _whole(form, layer, "output")
    yield f"{at}.mlp.gate_proj", Place(layer, "up", 0, form.inner, form.width)
    yield f"{at}.mlp.up_proj", Place(layer, "up", form.inner, form.inner, form.width)
    yield f"{at}.mlp.down_proj", _whole(form, layer, "down")


def _whole(form: DecoderForm, layer: int, product: Product, order: Order | None = None) -> Place:
    inputs, outputs = product_sizes(form)[product]
    return Place(layer, product, 0, outputs, inputs, order)
