"""Tasks in the form that the engine's kernels read: checked against the graph's layers, copied and packed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument, did_you_mean
from tidal.pets.engine.description import Description, LinearPlace
from tidal.pets.engine.native import hold, library
from tidal.pets.terms import Bottleneck, Head, LinearTerms, LowRankDelta, NormTerms, SparseDelta, TaskTerms

# As native/kernels.hpp numbers them.
_ACTIVATIONS = {"relu": 1, "gelu": 2, "silu": 3}

Array = npt.NDArray[Any]


class LoadedTask:
    """A task that an engine can run; made by `PetsEngine.add`.

    Attributes:
        head: its classifier.
        bytes: memory that it takes, its classifier included.
    """

    __slots__ = ("__weakref__", "_handle", "bytes", "head")

    def __init__(self, handle: int, head: Head) -> None:
        self._handle: int | None = handle
        self.head = head
        packed: int = library().tidal_task_bytes(handle)
        self.bytes = packed + head.weight.nbytes + head.bias.nbytes

    @property
    def handle(self) -> int:
        """The library's own.

        Raises:
            InvalidArgument: the task was removed.
        """
        if self._handle is None:
            raise InvalidArgument("the task was removed from the engine; accepted are tasks that `add` returned")
        return self._handle

    def release(self) -> None:
        """Let go of the memory as soon as no running batch needs it; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            library().tidal_task_release(handle)

    def __del__(self) -> None:
        self.release()


def load_task(terms: TaskTerms, description: Description) -> LoadedTask:
    """Check a task's terms against the layers of a graph, copy and pack them.

    Raises:
        InvalidArgument: a layer is unknown, or an array has another shape, type or content than the layer takes.
    """
    linear = {place.path: (number, place) for number, place in enumerate(description.linear)}
    norm = {place.path: (number, place) for number, place in enumerate(description.norm)}
    for path in terms.linear:
        if path not in linear:
            raise InvalidArgument(f"the base has no linear layer '{path}': {did_you_mean(path, linear)}")
    for path in terms.norm:
        if path not in norm:
            raise InvalidArgument(f"the base has no normalisation '{path}': {did_you_mean(path, norm)}")
    classes = len(terms.head.labels)
    head = Head(
        _floats("head weight", terms.head.weight, (classes, description.width)).copy(),
        _floats("head bias", terms.head.bias, (classes,)).copy(),
        terms.head.labels,
    )
    handle = library().tidal_task_create(len(linear), len(norm))
    hold(handle)
    try:
        for path, own in terms.linear.items():
            _add_linear(handle, *linear[path], own)
        for path, affine in terms.norm.items():
            number, place = norm[path]
            _add_norm(handle, number, place.width, path, affine)
        return LoadedTask(handle, head)
    except BaseException:
        library().tidal_task_release(handle)
        raise


def _add_linear(handle: int, number: int, place: LinearPlace, own: LinearTerms) -> None:
    path, outputs, inputs = place.path, place.outputs, place.inputs
    if own.bias is not None:
        _call("tidal_task_bias", handle, number, outputs, _floats(f"bias at '{path}'", own.bias, (outputs,)))
    match own.delta:
        case SparseDelta():
            _call("tidal_task_sparse", handle, number, outputs, *_sparse(own.delta, place))
        case LowRankDelta(down, up, scale):
            rank = len(down)
            arrays = (
                _floats(f"down of the low-rank difference at '{path}'", down, (rank, inputs)),
                _floats(f"up of the low-rank difference at '{path}'", up, (outputs, rank)),
            )
            _call("tidal_task_low_rank", handle, number, outputs, inputs, rank, *arrays, float(scale))
    if own.bottleneck is not None:
        _add_bottleneck(handle, number, place, own.bottleneck)


def _add_bottleneck(handle: int, number: int, place: LinearPlace, own: Bottleneck) -> None:
    outputs, width = place.outputs, len(own.down)
    where = f"of the bottleneck at '{place.path}'"
    if own.activation not in _ACTIVATIONS:
        raise InvalidArgument(f"activation '{own.activation}' {where}: {did_you_mean(own.activation, _ACTIVATIONS)}")
    arrays = (
        _floats(f"down {where}", own.down, (width, outputs)),
        _floats(f"down_bias {where}", own.down_bias, (width,)),
        _floats(f"up {where}", own.up, (outputs, width)),
        _floats(f"up_bias {where}", own.up_bias, (outputs,)),
    )
    _call("tidal_task_bottleneck", handle, number, outputs, width, *arrays, _ACTIVATIONS[own.activation])


def _add_norm(handle: int, number: int, width: int, path: str, own: NormTerms) -> None:
    arrays = (
        _floats(f"weight at '{path}'", own.weight, (width,)),
        _floats(f"bias at '{path}'", own.bias, (width,)),
    )
    _call("tidal_task_norm", handle, number, width, *arrays)


def _call(name: str, handle: int, *arguments: Array | float) -> None:
    function: Callable[..., object] = getattr(library(), name)
    hold(function(handle, *(_pointer(each) if isinstance(each, np.ndarray) else each for each in arguments)))


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _sparse(own: SparseDelta, place: LinearPlace) -> tuple[Array, Array, Array]:
    """The arrays as the library reads them: it trusts them, so that every index is held to the layer here."""
    where = f"of the sparse difference at '{place.path}'"
    entries = len(own.values)
    values = _floats(f"values {where}", own.values, (entries,))
    columns, starts = np.asarray(own.columns), np.asarray(own.starts)
    if starts.shape != (place.outputs + 1,) or columns.shape != (entries,):
        raise InvalidArgument(
            f"starts and columns {where} have shapes {starts.shape} and {columns.shape}, the layer and its values take "
            f"({place.outputs + 1},) and ({entries},)"
        )
    if starts.dtype != np.uint32 or columns.dtype != np.uint16:
        raise InvalidArgument(
            f"starts and columns {where} are {starts.dtype} and {columns.dtype}, not uint32 and uint16"
        )
    if starts[0] != 0 or starts[-1] != entries or np.any(starts[1:] < starts[:-1]):
        raise InvalidArgument(f"starts {where} do not rise from 0 to its {entries} values")
    if entries and int(columns.max()) >= place.inputs:
        raise InvalidArgument(f"a column {where} is {columns.max()}, the layer has {place.inputs} inputs")
    return np.ascontiguousarray(starts), np.ascontiguousarray(columns), values


def _floats(what: str, array: Any, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    array = np.asarray(array)
    if array.shape != shape or array.dtype != np.float32:
        raise InvalidArgument(f"{what} is {array.dtype} {array.shape}, the base takes float32 {shape}")
    return np.ascontiguousarray(array)
