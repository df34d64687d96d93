"""A task's terms as named tensors of a file, and back: the part that all kinds share.

Tensors are named `<layer>/<part>`. Every kind may have `head/weight` and `head/bias`, `<linear layer>/bias` and
`<normalisation>/weight` and `/bias`. Biases and normalisations are stored as differences from the base's: these are
small and keep their precision as float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tidal.errors import InvalidArgument, did_you_mean
from tidal.pets.heads import check_head, head_outputs, head_rows
from tidal.pets.kinds.kind import Kind
from tidal.pets.kinds.tensors import LayerTensors
from tidal.pets.terms import BaseLayers, FloatArray, Head, LinearTerms, NormLayer, NormTerms, TaskTerms
from tidal.tasks.stored import SEPARATOR, Storage, by_layer
from tidal.tensor_file import Array

_HEAD = "head"
# Prefix of the parts before the scores of a head for the words of the vocabulary.
_BEFORE = "transform_"


def read_terms(kind: Kind, tensors: Mapping[str, Array], form: Head, base: BaseLayers) -> TaskTerms:
    """Convert stored tensors to a task's terms.

    Args:
        kind: Kind of the task.
        tensors: Stored tensors by name.
        form: The task's head without its values.
        base: Layers of the base.

    Raises:
        InvalidArgument: A tensor is missing, unknown, or does not fit the base or the head.
    """
    parts = by_layer(tensors)
    head = _read_head(parts.pop(_HEAD, {}), form, base)
    linear: dict[str, LinearTerms] = {}
    norm: dict[str, NormTerms] = {}
    for path in sorted(parts):
        layer = base.linear.get(path) or base.norm.get(path)
        if layer is None:
            nearest = did_you_mean(path[:200], [*base.linear, *base.norm]).partition(" accepted: ")[0]
            raise InvalidArgument(f"the base has no layer '{path[:200]}' for a task to change: {nearest[:200]}")
        layer_tensors = LayerTensors(path, layer, parts[path])
        if isinstance(layer, NormLayer):
            norm[path] = _read_norm(layer_tensors, layer)
        else:
            terms = kind.read(layer_tensors)
            linear[path] = replace(terms, bias=_read_bias(layer_tensors))
        if left := layer_tensors.left():
            raise layer_tensors.refuse(left[0][:80], f"is unknown to the kind {kind.name} at this layer")
    return TaskTerms(head, linear, norm)


def write_terms(kind: Kind, terms: TaskTerms, base: BaseLayers, storage: Storage) -> dict[str, Array]:
    """Convert a task's terms to the tensors that `read_terms` reads; with float16 the values are rounded.

    Args:
        kind: Kind of the task.
        terms: Terms of the task.
        base: Layers of the base.
        storage: Storage of the values.

    Raises:
        InvalidArgument: The kind cannot express a term, or a layer is not one of the base's.
    """
    stored: dict[str, Array] = {}

    def store(path: str, parts: Mapping[str, Array]) -> None:
        stored.update({f"{path}{SEPARATOR}{part}": array for part, array in parts.items()})

    check_head(terms.head, base.width)
    with _naming(_HEAD):
        store(_HEAD, {part: storage.values(getattr(terms.head, part)) for part in ("weight", "bias")})
        if terms.head.vocabulary is not None:
            arrays = terms.head.vocabulary.arrays.items()
            store(_HEAD, {f"{_BEFORE}{part}": storage.values(array) for part, array in arrays})
    for path, change in terms.linear.items():
        layer = base.linear.get(path)
        if layer is None:
            raise InvalidArgument(f"the base has no linear layer '{path}'")
        for term in (change.delta, change.bottleneck):
            if term is not None and not isinstance(term, kind.term_types):
                raise InvalidArgument(
                    f"layer '{path}' has a {type(term).__name__}, which the kind {kind.name} cannot store"
                )
        with _naming(path):
            store(path, kind.write(change, layer, storage))
            if change.bias is not None:
                store(path, {"bias": storage.values(change.bias)})
    for path, norm in terms.norm.items():
        if path not in base.norm:
            raise InvalidArgument(f"the base has no normalisation '{path}'")
        shared = base.norm[path]
        differences = {"weight": norm.weight - shared.weight, "bias": norm.bias - shared.bias}
        with _naming(path):
            store(path, {part: storage.values(array) for part, array in differences.items() if array.any()})
    return stored


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Prefix errors about values with the layer's path."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"layer '{path}' {error}") from None


def _read_head(parts: Mapping[str, Array], form: Head, base: BaseLayers) -> Head:
    # Not a layer of the base, but checked in the same way.
    tensors = LayerTensors(_HEAD, NormLayer(np.zeros(0, np.float32), np.zeros(0, np.float32)), parts)
    of = "a row for each label" if form.labels else f"the outputs of task {form.task}"
    weight = tensors.values("weight", (head_rows(form), base.width), of)
    bias = tensors.values("bias", (head_outputs(form),), of)
    vocabulary = form.vocabulary
    if vocabulary is not None:
        width = "the encoder's width"
        arrays = {part: tensors.values(f"{_BEFORE}{part}", own.shape, width) for part, own in vocabulary.arrays.items()}
        vocabulary = vocabulary.with_arrays(arrays)
    if left := tensors.left():
        raise tensors.refuse(left[0][:80], "is unknown; accepted are head/weight and head/bias")
    head = replace(form, weight=weight, bias=bias, vocabulary=vocabulary)
    check_head(head, base.width)
    return head


def _read_bias(tensors: LayerTensors) -> FloatArray | None:
    if not tensors.has("bias"):
        return None
    return tensors.values("bias", tensors.linear.bias.shape, "the layer's outputs")


def _read_norm(tensors: LayerTensors, layer: NormLayer) -> NormTerms:
    changed = {}
    for part in ("weight", "bias"):
        shared = getattr(layer, part)
        changed[part] = np.array(shared)
        if tensors.has(part):
            changed[part] += tensors.values(part, shared.shape, "the layer's width")
    return NormTerms(changed["weight"], changed["bias"])
