"""The CUDA calls that engines need: memory that is allocated once, streams and captured graphs."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import runtime
from cuda.bindings.utils import get_cuda_native_handle

from tidal.errors import Internal, Unavailable


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Call a function of the CUDA runtime, which releases the GIL.

    Args:
        function: Function of `cuda.bindings.runtime`.
        *arguments: Its arguments.

    Returns:
        Its first result after the status; None if there is none.

    Raises:
        Unavailable: The device has no free memory.
        Internal: The call failed otherwise; names the function and CUDA's reason.
    """
    status, *values = function(*arguments)
    if status != runtime.cudaError_t.cudaSuccess:
        _, reason = runtime.cudaGetErrorString(status)
        kind = Unavailable if status == runtime.cudaError_t.cudaErrorMemoryAllocation else Internal
        raise kind(f"CUDA: {function.__name__} failed: {reason.decode()}")
    return values[0] if values else None


class DeviceMemory:
    """Memory of the device.

    Args:
        size: Size in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = int(call(runtime.cudaMalloc, size))
        weakref.finalize(self, runtime.cudaFree, self.address)


class Buffer:
    """Device memory, and page-locked host memory of the same size for copies.

    Args:
        size: Size in bytes.
    """

    def __init__(self, size: int) -> None:
        self.device = int(call(runtime.cudaMalloc, size))
        weakref.finalize(self, runtime.cudaFree, self.device)
        self.host = int(call(runtime.cudaMallocHost, size))
        weakref.finalize(self, runtime.cudaFreeHost, self.host)
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.host))

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The first bytes of the host memory as an array, which is valid as long as the buffer exists."""
        used = int(np.prod(shape)) * dtype.itemsize
        return self._bytes[:used].view(dtype).reshape(shape)


class Stream:
    """A CUDA stream: its work runs in order, concurrently with that of other streams."""

    def __init__(self) -> None:
        self._stream = call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)
        self.handle = int(get_cuda_native_handle(self._stream))
        weakref.finalize(self, runtime.cudaStreamDestroy, self._stream)

    def to_device(self, buffer: Buffer, size: int) -> None:
        """Copy the first `size` bytes of a buffer's host memory to its device memory."""
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        call(runtime.cudaMemcpyAsync, buffer.device, buffer.host, size, kind, self._stream)

    def to_host(self, buffer: Buffer, size: int) -> None:
        """Copy the first `size` bytes of a buffer's device memory to its host memory."""
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        call(runtime.cudaMemcpyAsync, buffer.host, buffer.device, size, kind, self._stream)

    def synchronize(self) -> None:
        """Wait, without the GIL, until everything on the stream is done."""
        call(runtime.cudaStreamSynchronize, self._stream)

    def capture(self, work: Callable[[], None]) -> Graph:
        """Capture the work that a function enqueues, without running it; other threads may use the device.

        Args:
            work: Function that enqueues work on this stream.
        """
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call(runtime.cudaStreamBeginCapture, self._stream, mode)
        try:
            work()
        except BaseException:
            runtime.cudaStreamEndCapture(self._stream)  # fails, because the work is not complete, but ends the capture
            raise
        return Graph(call(runtime.cudaStreamEndCapture, self._stream), self._stream)


class Graph:
    """Captured work of a stream, which one call starts.

    Args:
        graph: Captured CUDA graph.
        stream: Stream to run it on.
    """

    def __init__(self, graph: Any, stream: Any) -> None:
        self._stream = stream
        try:
            self._executable = call(runtime.cudaGraphInstantiate, graph, 0)
        finally:
            runtime.cudaGraphDestroy(graph)
        weakref.finalize(self, runtime.cudaGraphExecDestroy, self._executable)

    def launch(self) -> None:
        """Enqueue the work on its stream."""
        call(runtime.cudaGraphLaunch, self._executable, self._stream)
