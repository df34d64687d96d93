"""Tasks in the form that the kernels read: checked against the graph's layers, copied and packed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.errors import InvalidArgument
from tidal.pets.engine.checks import checked_terms
from tidal.pets.engine.contract import REMOVED_TASK, LoadedTask
from tidal.pets.engine.description import Description
from tidal.pets.openvino_engine.native import library, raise_on_failure
from tidal.pets.terms import Bottleneck, FloatArray, Head, LinearTerms, LowRankDelta, NormTerms, SparseDelta, TaskTerms

# As backends/native/activation.hpp numbers them.
_ACTIVATIONS = {"relu": 1, "gelu": 2, "silu": 4}

Array = npt.NDArray[Any]


class NativeTask(LoadedTask):
    """A task in the memory of the native library; made by `OpenVinoPetsEngine.add`."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int, head: Head) -> None:
        packed: int = library().tidal_task_bytes(handle)
        super().__init__(head, packed)
        self._handle: int | None = handle

    @property
    def handle(self) -> int:
        """Handle of the task in the library.

        Raises:
            InvalidArgument: The task was removed.
        """
        if self._handle is None:
            raise InvalidArgument(REMOVED_TASK)
        return self._handle

    def release(self) -> None:
        """Free the memory as soon as no running batch needs it; further calls do nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            library().tidal_task_release(handle)

    def __del__(self) -> None:
        self.release()


def load_task(terms: TaskTerms, description: Description, words: FloatArray | None = None) -> NativeTask:
    """Check a task's terms against the layers of a graph, copy and pack them.

    Args:
        terms: Terms of the task.
        description: Layers of the encoder.
        words: Word embeddings of the encoder, for heads that have no weights of their own.

    Raises:
        InvalidArgument: As `checked_terms`.
    """
    terms = checked_terms(terms, description)
    linear = {spec.path: (number, spec.outputs, spec.inputs) for number, spec in enumerate(description.linear)}
    norm = {spec.path: number for number, spec in enumerate(description.norm)}
    head = terms.head.loaded(words)
    handle = library().tidal_task_create(len(linear), len(norm))
    raise_on_failure(handle)
    try:
        for path, own in terms.linear.items():
            _add_linear(handle, *linear[path], own)
        for path, affine in terms.norm.items():
            _add_norm(handle, norm[path], affine)
        return NativeTask(handle, head)
    except BaseException:
        library().tidal_task_release(handle)
        raise


def _add_linear(handle: int, number: int, outputs: int, inputs: int, own: LinearTerms) -> None:
    if own.bias is not None:
        _call("tidal_task_bias", handle, number, outputs, own.bias)
    match own.delta:
        case SparseDelta(starts, columns, values):
            _call("tidal_task_sparse", handle, number, outputs, starts, columns, values)
        case LowRankDelta(down, up, scale):
            _call("tidal_task_low_rank", handle, number, outputs, inputs, len(down), down, up, scale)
    if own.bottleneck is not None:
        _add_bottleneck(handle, number, outputs, own.bottleneck)


def _add_bottleneck(handle: int, number: int, outputs: int, own: Bottleneck) -> None:
    arrays = own.down, own.down_bias, own.up, own.up_bias
    how = _ACTIVATIONS[own.activation], own.after_norm
    _call("tidal_task_bottleneck", handle, number, outputs, len(own.down), *arrays, *how)


def _add_norm(handle: int, number: int, own: NormTerms) -> None:
    _call("tidal_task_norm", handle, number, len(own.weight), own.weight, own.bias)


def _call(name: str, handle: int, *arguments: Array | float) -> None:
    function: Callable[..., object] = getattr(library(), name)
    raise_on_failure(
        function(handle, *(_pointer(each) if isinstance(each, np.ndarray) else each for each in arguments))
    )


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
