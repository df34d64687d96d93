"""Graphs whose answer is that of the first token: computed for it alone, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from testing.models import make_tiny_classifier
from tests.engines.support import Logits, make_batch
from tidal.engines.first_token import keep_first_token
from tidal.engines.openvino import compile_engine
from tidal_builders.encoder_tasks.prepared import PrepareOptions

WIDTH = 6
Build = Callable[[ov.Node], ov.Node]
_random = np.random.default_rng(0)
SQUARE = _random.normal(size=(WIDTH, WIDTH)).astype(np.float32)
PER_TOKEN = _random.normal(size=(5, WIDTH)).astype(np.float32)


def ints(*values: int) -> ov.Node:
    return op.constant(np.array(values, np.int64))


def linear(x: ov.Node, factor: float = 1.0) -> ov.Node:
    return op.matmul(x, op.constant(SQUARE * np.float32(factor)), False, True)


def softmax(axis: int) -> Build:
    return lambda x: linear(op.softmax(linear(x), axis))


def attention(causal: bool) -> Build:
    def build(x: ov.Node) -> ov.Node:
        each = [op.reshape(linear(x, factor), ints(0, 0, 2, 3), True) for factor in (0.5, -0.5, 2.0)]
        heads = [op.transpose(part, ints(0, 2, 1, 3)) for part in each]
        mixed = op.scaled_dot_product_attention(*heads, causal=causal)
        return linear(op.add(x, op.reshape(op.transpose(mixed, ints(0, 2, 1, 3)), ints(0, 0, WIDTH), True)))

    return build


def masked(x: ov.Node) -> ov.Node:
    mask = op.reduce_sum(op.matmul(x, x, False, True), ints(0), keep_dims=True)  # [1, tokens, tokens]
    return linear(op.scaled_dot_product_attention(linear(x), x, x, mask))


def scored(x: ov.Node) -> ov.Node:
    return linear(op.matmul(op.softmax(op.matmul(linear(x), x, False, True), -1), x, False, False))


def normed(*axes: int) -> Build:
    return lambda x: linear(op.mvn(linear(x), ints(*axes), True, 1e-5, "inside_sqrt"))


def broadcast(x: ov.Node) -> ov.Node:
    return linear(op.multiply(op.reduce_mean(x, ints(1), keep_dims=True), op.add(linear(x), op.constant(PER_TOKEN))))


def mixing(x: ov.Node) -> ov.Node:
    return linear(op.reshape(op.transpose(linear(x), ints(0, 2, 1)), ints(0, 5, WIDTH), True))


def transposed(x: ov.Node) -> ov.Node:
    return op.matmul(linear(x), linear(x), True, False)


#: Graphs from [rows, 5, WIDTH], and whether some of their work is for the first token alone.
GRAPHS: dict[str, tuple[Build, bool]] = {
    "attention": (attention(causal=False), True),
    "attention with a mask": (masked, True),
    "causal attention": (attention(causal=True), True),
    "attention without fusion": (scored, True),
    "softmax over values": (softmax(2), True),
    "softmax over tokens": (softmax(1), True),
    "norm of tokens": (normed(-1), True),
    "norm over tokens": (normed(1, 2), True),
    "broadcast": (broadcast, True),
    "reshape that mixes tokens": (mixing, True),
    "tokens as columns": (transposed, False),
    "mean": (lambda x: op.reduce_mean(linear(x), ints(1), keep_dims=True), False),
}


def model_of(build: Build, *, whole: bool = False) -> ov.Model:
    x = op.parameter([-1, -1, WIDTH], np.float32)
    x.output(0).get_tensor().set_names({"x"})
    last = build(linear(x))
    first = op.gather(last, op.constant(np.int64(0)), op.constant(np.int64(1)))
    return ov.Model([first, *([last] if whole else [])], [x])


def run(model: ov.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled(inputs).to_dict().values())


@pytest.mark.parametrize("name", GRAPHS)
def test_the_first_token_is_the_same(name: str) -> None:
    build, changes = GRAPHS[name]
    x = np.random.default_rng(1).normal(size=(3, 5, WIDTH)).astype(np.float32)
    (wanted,) = run(model_of(build), x=x)
    model = model_of(build)
    assert (keep_first_token(model) > 0) is changes
    (found,) = run(model, x=x)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


def test_tokens_that_are_answers_stay() -> None:
    model = model_of(attention(causal=False), whole=True)
    assert keep_first_token(model) == 0


def test_the_queries_of_other_tokens_are_not_computed() -> None:
    model = model_of(attention(causal=False))
    keep_first_token(model)
    model.reshape([3, 5, WIDTH])
    rows = [node.output(0).shape[-2] for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    # The layer below; keys and values; the query, and the layer above.
    assert sorted(rows) == [1, 1, 5, 5, 5]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_compiled_classifier_computes_one_feed_forward_row_and_equals_the_source(tmp_path: Path, layers: int) -> None:
    from tidal_builders.arlo.source import load_source

    make_tiny_classifier(tmp_path, layers=layers)
    source = load_source(tmp_path, "classification", PrepareOptions())
    batch = make_batch(3, 12)
    shapes = dict.fromkeys(batch, ((1, 8), (1, 64)))
    compile_engine(
        Logits(source.model), tmp_path, precision="fp32", shapes=shapes, example=make_batch(2, 7), calibration=()
    )
    model = ov.Core().read_model(tmp_path / "model.xml")
    assert sum(node.get_type_name() == "Slice" for node in model.get_ops()) >= 2
    (found,) = run(model, **batch)
    for row in range(3):
        length = int(batch["attention_mask"][row].sum())
        alone = {name: values[row, :length] for name, values in batch.items()}
        np.testing.assert_allclose(found[row], source.outputs(alone, attention=False)["logits"], atol=1e-4)
