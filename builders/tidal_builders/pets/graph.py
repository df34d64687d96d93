"""An encoder as an OpenVINO graph whose operations look up every row's task in the running batch.

The tokens of all rows are one after another, without padding: a batch of any lengths costs what its tokens cost, and
attention is computed row by row. A block is four shared products, each followed by an operation. Query, key and value
are one product; activation, residual and normalisation are computed together with the task's terms. Only the first
token's vector is pooled, so the last block computes its outputs for some tokens alone: the first of each row, or all
for tasks that read every token. All its queries are computed if the attention that tokens receive is an output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from tidal.pets.engine.description import ATTENTION_RECEIVED, WORDS, BlockPaths, Description, LinearSpec, NormSpec
from tidal.pets.openvino_engine.native import library, library_path
from tidal.pets.terms import FloatArray
from tidal_builders.pets.encoder import Encoder


def build_graph(encoder: Encoder, digest: str, *, attention: bool = False) -> tuple[ov.Model, Description]:
    """Make the graph of an encoder and its description.

    Inputs of the graph: `input_ids` i32 [1, tokens], `position_ids` i32 [1, tokens], `token_type_ids` i32 [1, tokens]
    if the encoder has types, `computed` i32 [outputs] (tokens that the last block computes, the first of each row or
    all), `first` i32 [rows] (where the first token of each row is among them), `batch` i32 [1]. Outputs: `pooled` f32
    [rows, width], `hidden` f32 [1, outputs, width], and with attention `attention_received` f32 [1, tokens], summed
    over layers, heads and queries (Tabi §4.2).

    Args:
        encoder: Weights of the encoder.
        digest: Digest of all weights, by which tasks name the encoder.
        attention: Whether the graph returns the attention that tokens receive.
    """
    return _Graph(encoder, attention).build(digest)


@dataclass
class _Graph:
    encoder: Encoder
    attention: bool
    received: list[Any] = field(default_factory=list)
    linear: list[LinearSpec] = field(default_factory=list)
    norm: list[NormSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        library()
        self.factory = NodeFactory("opset13")
        self.factory.add_extension(str(library_path()))
        self.batch = ops.parameter([1], np.int32, name="batch")
        self.computed = ops.parameter([-1], np.int32, name="computed")

    def build(self, digest: str) -> tuple[ov.Model, Description]:
        encoder = self.encoder
        tables = {"input_ids": (encoder.words, WORDS), "position_ids": (encoder.positions, "positions")}
        if encoder.types is not None:
            tables["token_type_ids"] = encoder.types, "types"
        inputs = [ops.parameter([1, -1], np.int32, name=name) for name in tables]
        looked_up = [
            ops.gather(_constant(*table), ids, _axis(0)) for ids, table in zip(inputs, tables.values(), strict=True)
        ]
        hidden = reduce(ops.add, looked_up)
        weight, bias, attributes = self._norm(encoder.embedding_norm)
        hidden = self._create("TaskNorm", [hidden, weight, bias, self.batch], attributes)
        for block in encoder.blocks:
            hidden = self._block(block, hidden, last=block is encoder.blocks[-1])
        first = ops.parameter([-1], np.int32, name="first")
        pooled = ops.squeeze(_tokens(hidden, first), _axis([0]))
        if encoder.pooler is not None:
            pooled = self._linear([encoder.pooler.path], pooled, encoder.pooler.activation)
        outputs = [(pooled, "pooled"), (hidden, "hidden")]
        if self.attention:
            outputs.append((ops.reduce_sum(reduce(ops.add, self.received), _axis([1])), ATTENTION_RECEIVED))
        inputs += [self.computed, first, self.batch]
        for node, name in [*((node, node.get_friendly_name()) for node in inputs), *outputs]:
            node.output(0).get_tensor().set_names({name})
        description = Description(
            digest=digest,
            model_type=encoder.model_type,
            width=encoder.width,
            vocabulary=encoder.words.shape[0],
            longest=encoder.positions.shape[0],
            types=0 if encoder.types is None else encoder.types.shape[0],
            linear=tuple(self.linear),
            norm=tuple(self.norm),
            attention=self.attention,
            hidden=True,
            packed=True,
        )
        return ov.Model([ops.result(node) for node, _ in outputs], inputs, "encoder"), description

    def _block(self, block: BlockPaths, hidden: Any, *, last: bool) -> Any:
        if last and not self.attention:
            residual = _tokens(hidden, self.computed)
            query = self._linear([block.query], residual)
            key = self._linear([block.key, block.value], hidden)
        else:
            residual = hidden
            query = key = self._linear([block.query, block.key, block.value], hidden)
        shape = {"heads": self.encoder.heads, "width": self.encoder.width, "received": int(self.attention)}
        mixed = self._create("RowAttention", [query, key, self.batch], shape)
        if self.attention:
            self.received.append(mixed.output(1))
            mixed = mixed.output(0)
            if last:
                mixed, residual = _tokens(mixed, self.computed), _tokens(hidden, self.computed)
        attended = self._linear_norm(block.attention_output, block.attention_norm, mixed, residual)
        inner = self._linear([block.inner], attended, self.encoder.activation)
        return self._linear_norm(block.outer, block.output_norm, inner, attended)

    def _linear(self, paths: list[str], source: Any, activation: str = "none") -> Any:
        shared, first = self._product(paths, source)
        attributes = {
            "layers": list(range(first, first + len(paths))),
            "outputs": [self.encoder.linear[path].shape[0] for path in paths],
            "activation": activation,
        }
        return self._create("TaskLinear", [shared, source, self.batch], attributes)

    def _linear_norm(self, path: str, norm: str, source: Any, residual: Any) -> Any:
        shared, number = self._product([path], source, norm)
        weight, bias, attributes = self._norm(norm)
        return self._create(
            "TaskLinearNorm", [shared, source, residual, weight, bias, self.batch], {"layer": number, **attributes}
        )

    def _product(self, paths: list[str], source: Any, norm: str | None = None) -> tuple[Any, int]:
        """The shared product with its bias, and the number of the first of its layers; `norm` normalises its sum."""
        layers = [self.encoder.linear[path] for path in paths]
        weight, bias = f"{paths[0]}.weight", f"{paths[0]}.bias"
        number, first = len(self.linear), 0
        for path, layer in zip(paths, layers, strict=True):
            outputs, inputs = layer.shape
            spec = LinearSpec(
                path=path, outputs=outputs, inputs=inputs, weight=weight, bias=bias, first=first, norm=norm
            )
            self.linear.append(spec)
            first += outputs
        matrix = _constant(np.concatenate([layer.weight for layer in layers]), weight)
        vector = np.concatenate([layer.bias for layer in layers])
        rank = len(_port(source).get_partial_shape())
        shared = ops.matmul(source, matrix, False, True)
        return ops.add(shared, _constant(vector.reshape((1,) * (rank - 1) + (-1,)), bias)), number

    def _norm(self, path: str) -> tuple[Any, Any, dict[str, Any]]:
        layer = self.encoder.norm[path]
        spec = NormSpec(path=path, width=len(layer.weight), weight=f"{path}.weight", bias=f"{path}.bias")
        attributes = {"norm": len(self.norm), "epsilon": float(self.encoder.epsilon)}
        self.norm.append(spec)
        return _constant(layer.weight, spec.weight), _constant(layer.bias, spec.bias), attributes

    def _create(self, kind: str, arguments: list[Any], attributes: dict[str, Any]) -> Any:
        return self.factory.create(kind, [_port(node) for node in arguments], attributes)


def _constant(array: FloatArray, name: str) -> Any:
    node = ops.constant(np.ascontiguousarray(array, np.float32))
    node.set_friendly_name(name)
    return node


def _port(node: Any) -> Any:
    """The only output of a node, or an output that was selected."""
    return node if isinstance(node, ov.Output) else node.output(0)


def _axis(value: int | list[int]) -> Any:
    return ops.constant(np.asarray(value, np.int32))


def _tokens(hidden: Any, numbers: Any) -> Any:
    return ops.gather(hidden, numbers, _axis(1))
