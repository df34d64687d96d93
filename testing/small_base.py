"""A base of a few small layers without a model around them, random tasks for it, and comparisons of their terms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from tidal.pets.base import make_base_layers
from tidal.pets.kinds.kind import find_kind
from tidal.pets.kinds.positions import sparse_delta
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import (
    BaseLayers,
    Bottleneck,
    FloatArray,
    Head,
    LinearLayer,
    LinearTerms,
    LowRankDelta,
    NormLayer,
    NormTerms,
    SparseDelta,
    TaskTerms,
)

KINDS = ("adapter", "bitfit", "diff_pruning", "lora", "maskbert")
WIDTH, INNER = 16, 32
QUERY = "encoder.layer.0.attention.self.query"
OUTPUT = "encoder.layer.0.output.dense"
NORM = "encoder.layer.0.output.LayerNorm"
MADE = Provenance(format="trained", source="a test")


def small_base(seed: int = 0) -> BaseLayers:
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> FloatArray:
        return draw.normal(size=shape).astype(np.float32)

    linear = {
        QUERY: LinearLayer(values(WIDTH, WIDTH), values(WIDTH)),
        "encoder.layer.0.attention.output.dense": LinearLayer(values(WIDTH, WIDTH), values(WIDTH)),
        "encoder.layer.0.intermediate.dense": LinearLayer(values(INNER, WIDTH), values(INNER)),
        OUTPUT: LinearLayer(values(WIDTH, INNER), values(WIDTH)),
        "pooler.dense": LinearLayer(values(WIDTH, WIDTH), values(WIDTH)),
    }
    norm = {NORM: NormLayer(values(WIDTH), values(WIDTH))}
    return make_base_layers(linear, norm, {"embeddings.word_embeddings.weight": values(7, WIDTH)}, WIDTH)[0]


def random_task(kind: str, base: BaseLayers, seed: int = 0, classes: int = 3, density: float = 0.05) -> TaskTerms:
    """A task that changes every layer that its kind may change."""
    draw = np.random.default_rng(seed)

    def values(*shape: int) -> FloatArray:
        return draw.normal(size=shape).astype(np.float32)

    find_kind(kind)
    linear: dict[str, LinearTerms] = {}
    for path, layer in base.linear.items():
        outputs, inputs = layer.shape
        places = np.flatnonzero(draw.random(layer.weight.size) < density)
        bias = values(outputs)
        match kind:
            case "adapter":
                if path.endswith("output.dense"):
                    down, down_bias = values(4, outputs), values(4)
                    up, up_bias = values(outputs, 4), values(outputs)
                    linear[path] = LinearTerms(bottleneck=Bottleneck(down, down_bias, up, up_bias, "gelu"))
            case "lora":
                linear[path] = LinearTerms(delta=LowRankDelta(values(3, inputs), values(outputs, 3), 0.5))
            case "diff_pruning":
                linear[path] = LinearTerms(sparse_delta(places, values(len(places)), layer.shape), bias)
            case "maskbert":
                linear[path] = LinearTerms(sparse_delta(places, -layer.weight.reshape(-1)[places], layer.shape))
            case _:
                linear[path] = LinearTerms(bias=bias)
    norm = {}
    if kind in ("bitfit", "diff_pruning"):
        norm = {path: NormTerms(values(WIDTH), values(WIDTH)) for path in base.norm}
    head = Head(values(classes, base.width), values(classes), tuple(f"label {number}" for number in range(classes)))
    return TaskTerms(head, linear, norm)


def dense(delta: SparseDelta | LowRankDelta | None, shape: tuple[int, int]) -> FloatArray:
    """A weight difference as a matrix."""
    matrix = np.zeros(shape, np.float32)
    if isinstance(delta, SparseDelta):
        for row in range(shape[0]):
            span = slice(delta.starts[row], delta.starts[row + 1])
            matrix[row, delta.columns[span]] = delta.values[span]
    elif delta is not None:
        matrix += np.float32(delta.scale) * (delta.up @ delta.down)
    return matrix


def arrays_of(found: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every array and plain value of a task's terms, with its path."""
    if isinstance(found, dict):
        for name, each in found.items():
            yield from arrays_of(each, f"{path}/{name}")
    elif dataclasses.is_dataclass(found):
        for name in (each.name for each in dataclasses.fields(found)):
            yield from arrays_of(getattr(found, name), f"{path}.{name}")
    else:
        yield path, found


def same_terms(left: TaskTerms, right: TaskTerms, tolerance: float = 1e-6) -> bool:
    """Whether two tasks have the same terms, their values within a tolerance."""
    ours, theirs = dict(arrays_of(left)), dict(arrays_of(right))
    return ours.keys() == theirs.keys() and all(
        np.allclose(value, theirs[path], rtol=tolerance, atol=tolerance)  # type: ignore[arg-type]
        if isinstance(value, np.ndarray)
        else value == theirs[path]
        for path, value in ours.items()
    )
