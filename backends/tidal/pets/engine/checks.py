"""Checks of tasks' terms and of batches against an encoder's layers, before an engine uses them unchecked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument, did_you_mean
from tidal.pets.engine.contract import Ids, no_hidden_error
from tidal.pets.engine.description import Description, LinearSpec
from tidal.pets.heads import check_head, head_reads
from tidal.pets.terms import (
    Activation,
    Bottleneck,
    FloatArray,
    Head,
    LinearTerms,
    LowRankDelta,
    NormTerms,
    SparseDelta,
    TaskTerms,
)


def checked_terms(terms: TaskTerms, description: Description) -> TaskTerms:
    """Check that a task's terms fit an encoder's layers.

    Args:
        terms: Terms of the task.
        description: Layers of the encoder.

    Returns:
        The same terms with contiguous arrays.

    Raises:
        InvalidArgument: A layer is unknown, or an array has another shape, type or content than the layer accepts.
        Unsupported: The head reads hidden states, and the encoder was exported without them.
    """
    linear = {spec.path: spec for spec in description.linear}
    norm = {spec.path: spec.width for spec in description.norm}
    for path in terms.linear:
        if path not in linear:
            raise InvalidArgument(f"the base has no linear layer '{path}': {did_you_mean(path, linear)}")
    for path in terms.norm:
        if path not in norm:
            raise InvalidArgument(f"the base has no normalisation '{path}': {did_you_mean(path, norm)}")
    check_head(terms.head, description.width)
    if head_reads(terms.head) != "pooled" and not description.hidden:
        raise no_hidden_error()
    return TaskTerms(
        _head(terms.head, description),
        {path: _linear(linear[path], own) for path, own in terms.linear.items()},
        {path: _norm(path, norm[path], own) for path, own in terms.norm.items()},
    )


def checked_batch(
    description: Description, tasks: Sequence[object], ids: Ids, lengths: Ids, type_ids: Ids | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]:
    """Check a batch against an encoder.

    Args:
        description: Layers and sizes of the encoder.
        tasks: Task of each row.
        ids: Token ids [rows, tokens].
        lengths: Number of real tokens of each row [rows].
        type_ids: Token types [rows, tokens], or None.

    Returns:
        Token ids and token types, int32 [rows, tokens]; None instead of types for an encoder without types.

    Raises:
        InvalidArgument: Shapes do not match, or an id is outside the vocabulary.
    """
    if ids.ndim != 2 or 0 in ids.shape or ids.shape[1] > description.longest:
        raise InvalidArgument(f"ids have shape {ids.shape}, accepted is [rows, 1 to {description.longest}]")
    if len(tasks) != len(ids) or lengths.shape != (len(ids),):
        raise InvalidArgument(f"{len(tasks)} tasks and {lengths.shape} lengths do not fit {len(ids)} rows of ids")
    if lengths.min() < 1 or lengths.max() > ids.shape[1]:
        raise InvalidArgument(f"lengths are {lengths.min()} to {lengths.max()}, accepted are 1 to {ids.shape[1]}")
    bounded = _bounded("ids", ids, description.vocabulary)
    if not description.types:
        return bounded, None
    given = np.zeros(ids.shape, np.int32) if type_ids is None else type_ids
    if given.shape != ids.shape:
        raise InvalidArgument(f"type_ids have shape {given.shape}, ids have {ids.shape}")
    return bounded, _bounded("type_ids", given, description.types)


def _head(head: Head, description: Description) -> Head:
    vocabulary = head.vocabulary
    if vocabulary is not None:
        if vocabulary.form.tied and vocabulary.form.words != description.vocabulary:
            raise InvalidArgument(
                f"the head scores {vocabulary.form.words} words by the base's word embeddings, which are "
                f"{description.vocabulary}; import the task again"
            )
        arrays = {name: _floats(f"head {name}", array, array.shape) for name, array in vocabulary.arrays.items()}
        vocabulary = vocabulary.with_arrays(arrays)
    return replace(
        head,
        weight=_floats("head weight", head.weight, head.weight.shape),
        bias=_floats("head bias", head.bias, head.bias.shape),
        vocabulary=vocabulary,
    )


def _bounded(what: str, array: Ids, limit: int) -> npt.NDArray[np.int32]:
    if not np.issubdtype(array.dtype, np.integer):
        raise InvalidArgument(f"{what} are {array.dtype}, accepted are whole numbers")
    if array.min() < 0 or array.max() >= limit:
        raise InvalidArgument(f"{what} are {array.min()} to {array.max()}, accepted are 0 to {limit - 1}")
    # A copy where it is needed: OpenVINO insists on contiguous, writeable memory.
    return np.require(array, np.int32, ["C", "W"])


def _linear(spec: LinearSpec, own: LinearTerms) -> LinearTerms:
    path, outputs, inputs = spec.path, spec.outputs, spec.inputs
    delta = own.delta
    match delta:
        case SparseDelta():
            delta = _sparse(delta, spec)
        case LowRankDelta(down, up, scale):
            rank = len(down)
            delta = LowRankDelta(
                _floats(f"down of the low-rank difference at '{path}'", down, (rank, inputs)),
                _floats(f"up of the low-rank difference at '{path}'", up, (outputs, rank)),
                float(scale),
            )
    bias = None if own.bias is None else _floats(f"bias at '{path}'", own.bias, (outputs,))
    return LinearTerms(delta, bias, None if own.bottleneck is None else _bottleneck(spec, own.bottleneck))


def _bottleneck(spec: LinearSpec, own: Bottleneck) -> Bottleneck:
    outputs, width = spec.outputs, len(own.down)
    where = f"of the bottleneck at '{spec.path}'"
    if own.activation not in get_args(Activation):
        raise InvalidArgument(
            f"activation '{own.activation}' {where}: {did_you_mean(own.activation, sorted(get_args(Activation)))}"
        )
    if own.after_norm and spec.norm is None:
        raise InvalidArgument(
            f"the bottleneck at '{spec.path}' reads a normalised sum, which the base does not compute there; build the "
            "base again if it is of an earlier release"
        )
    return Bottleneck(
        _floats(f"down {where}", own.down, (width, outputs)),
        _floats(f"down_bias {where}", own.down_bias, (width,)),
        _floats(f"up {where}", own.up, (outputs, width)),
        _floats(f"up_bias {where}", own.up_bias, (outputs,)),
        own.activation,
        own.after_norm,
    )


def _norm(path: str, width: int, own: NormTerms) -> NormTerms:
    return NormTerms(
        _floats(f"weight at '{path}'", own.weight, (width,)), _floats(f"bias at '{path}'", own.bias, (width,))
    )


def _sparse(own: SparseDelta, spec: LinearSpec) -> SparseDelta:
    """The same difference, with every index checked against the layer: kernels do not check them."""
    where = f"of the sparse difference at '{spec.path}'"
    entries = len(own.values)
    values = _floats(f"values {where}", own.values, (entries,))
    columns, starts = np.asarray(own.columns), np.asarray(own.starts)
    if starts.shape != (spec.outputs + 1,) or columns.shape != (entries,):
        raise InvalidArgument(
            f"starts and columns {where} have shapes {starts.shape} and {columns.shape}; accepted are "
            f"({spec.outputs + 1},) and ({entries},)"
        )
    if starts.dtype != np.uint32 or columns.dtype != np.uint16:
        raise InvalidArgument(
            f"starts and columns {where} are {starts.dtype} and {columns.dtype}; accepted are uint32 and uint16"
        )
    if starts[0] != 0 or starts[-1] != entries or np.any(starts[1:] < starts[:-1]):
        raise InvalidArgument(f"starts {where} must ascend from 0 to {entries}, the number of its values")
    if entries and int(columns.max()) >= spec.inputs:
        raise InvalidArgument(
            f"a column {where} is {columns.max()}; accepted are columns below {spec.inputs}, the layer's inputs"
        )
    return SparseDelta(np.ascontiguousarray(starts), np.ascontiguousarray(columns), values)


def _floats(what: str, array: Any, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(array)
    if array.shape != shape or array.dtype != np.float32:
        raise InvalidArgument(f"{what} is {array.dtype} {array.shape}; the base accepts float32 {shape}")
    return np.ascontiguousarray(array)
