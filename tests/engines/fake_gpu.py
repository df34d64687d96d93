"""Stand-ins for the CUDA runtime and TensorRT: host memory for device memory, a weighted sum for a network.

They check which bytes Tidal's code copies where and in which order. They do not check that the calls exist, which the
type check does, nor what a GPU computes.
"""

from __future__ import annotations

import ctypes
import enum
import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 3
# Bytes of intermediate results of the first profile; every further one needs as many more.
SCRATCH = 100
Work = Callable[[], object]


def sums(inputs: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """Return the network's outputs: the sum of the unmasked tokens, times 1, 2 and 3."""
    kept = (inputs["input_ids"] * inputs["attention_mask"]).sum(axis=1, dtype=np.float32)
    return np.asarray(kept[:, None] * np.arange(1, CLASSES + 1, dtype=np.float32), np.float32)


@dataclass
class Stream:
    number: int
    recording: list[Work] | None = None

    def put(self, work: Work) -> None:
        if self.recording is None:
            work()
        else:
            self.recording.append(work)


@dataclass
class Gpu:
    """State and history of the device."""

    memory: dict[int, Any] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    copied: list[tuple[str, int]] = field(default_factory=list)
    captures: int = 0
    launches: int = 0
    full: bool = False

    def runtime(self) -> Any:
        """The module `cuda.bindings.runtime`."""
        errors = enum.IntEnum("cudaError_t", {"cudaSuccess": 0, "cudaErrorMemoryAllocation": 2})
        ok = errors.cudaSuccess

        def allocate(size: int) -> tuple[Any, ...]:
            if self.full:
                return errors.cudaErrorMemoryAllocation, None
            block = (ctypes.c_uint8 * size)()
            self.memory[ctypes.addressof(block)] = block
            return ok, ctypes.addressof(block)

        def free(address: int) -> tuple[Any, ...]:
            del self.memory[address]
            return (ok,)

        def stream(_flags: int) -> tuple[Any, ...]:
            made = Stream(len(self.streams) + 1)
            self.streams[made.number] = made
            return ok, made

        def copy(target: int, source: int, size: int, kind: str, on: Stream) -> tuple[Any, ...]:
            assert size <= min(len(self.memory[target]), len(self.memory[source]))
            on.put(lambda: (self.copied.append((kind, size)), ctypes.memmove(target, source, size)))
            return (ok,)

        def begin(on: Stream, _mode: object) -> tuple[Any, ...]:
            on.recording = []
            return (ok,)

        def end(on: Stream) -> tuple[Any, ...]:
            graph, on.recording = on.recording, None
            self.captures += 1
            return ok, graph

        def launch(graph: list[Work], _on: Stream) -> tuple[Any, ...]:
            self.launches += 1
            for work in graph:
                work()
            return (ok,)

        functions: dict[str, Any] = {
            "cudaMalloc": allocate,
            "cudaMallocHost": allocate,
            "cudaFree": free,
            "cudaFreeHost": free,
            "cudaStreamCreateWithFlags": stream,
            "cudaStreamDestroy": lambda _: (ok,),
            "cudaStreamSynchronize": lambda _: (ok,),
            "cudaMemcpyAsync": copy,
            "cudaStreamBeginCapture": begin,
            "cudaStreamEndCapture": end,
            "cudaGraphInstantiate": lambda graph, _: (ok, graph),
            "cudaGraphDestroy": lambda _: (ok,),
            "cudaGraphExecDestroy": lambda _: (ok,),
            "cudaGraphLaunch": launch,
            "cudaGetErrorString": lambda _: (ok, b"out of memory"),
        }
        return SimpleNamespace(
            **functions,
            cudaError_t=errors,
            cudaStreamNonBlocking=1,
            cudaStreamCaptureMode=SimpleNamespace(cudaStreamCaptureModeThreadLocal=1),
            cudaMemcpyKind=SimpleNamespace(cudaMemcpyHostToDevice="in", cudaMemcpyDeviceToHost="out"),
        )

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        """Device memory as an array."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(self.memory[address], np.uint8, size).view(dtype).reshape(shape)


class Severity(enum.IntEnum):
    ERROR = 1
    INTERNAL_ERROR = 0
    WARNING = 2


class ILogger:
    Severity = Severity

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class Context:
    """An execution context: it stores shapes and addresses and computes `sums` of the inputs there.

    As in TensorRT, captured work is valid only while its context exists and has the shapes that it was captured with.
    """

    def __init__(self, gpu: Gpu, plan: dict[str, Any]) -> None:
        self.gpu, self.plan = gpu, plan
        self.profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.scratch: tuple[int, int] | None = None

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= self.plan_bytes
        assert len(self.gpu.memory[address]) >= size
        self.scratch = address, size

    @property
    def plan_bytes(self) -> int:
        return SCRATCH * (self.profile + 1)

    def set_optimization_profile_async(self, profile: int, _stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        bounds = self.plan["profiles"][self.profile][name]
        self.shapes[name] = tuple(shape)
        return all(low <= size <= high for size, (low, high) in zip(shape, bounds, strict=True))

    def infer_shapes(self) -> list[str]:
        return [name for name in self.plan["inputs"] if name not in self.shapes]

    def get_tensor_shape(self, _name: str) -> list[int]:
        return [self.shapes["input_ids"][0], CLASSES]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        shapes, alive = dict(self.shapes), weakref.ref(self)
        assert self.scratch is not None

        def work() -> None:
            context = alive()
            assert context is not None, "the context of the work is closed"
            assert context.shapes == shapes, f"captured at {shapes}, but the context has {context.shapes} now"
            inputs = {n: context.gpu.array(context.addresses[n], shapes[n], "int64") for n in context.plan["inputs"]}
            rows = shapes["input_ids"][0]
            context.gpu.array(context.addresses["logits"], (rows, CLASSES), "float32")[:] = sums(inputs)

        self.gpu.streams[stream].put(work)
        return True


class Engine:
    def __init__(self, gpu: Gpu, plan: dict[str, Any]) -> None:
        self.gpu, self.plan = gpu, plan
        self.names = [*plan["inputs"], "logits"]
        self.num_io_tensors, self.num_optimization_profiles = len(self.names), len(plan["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "output" if name == "logits" else "input"

    def get_tensor_dtype(self, name: str) -> str:
        return "float" if name == "logits" else "int64"

    def get_tensor_shape(self, _name: str) -> list[int]:
        return [-1, CLASSES]

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return SCRATCH * (profile + 1)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[list[int]]:
        bounds = self.plan["profiles"][profile][name]
        low, high = [low for low, _ in bounds], [high for _, high in bounds]
        return [low, high, high]

    def create_execution_context(self, strategy: str) -> Context:
        assert strategy == "user managed"
        return Context(self.gpu, self.plan)


def write_plan(inputs: tuple[str, ...], profiles: Any) -> bytes:
    """Return the content of a plan's file."""
    return json.dumps({"inputs": inputs, "profiles": profiles}).encode()


def tensorrt(gpu: Gpu) -> Any:
    """Return the part of the module `tensorrt` that running a plan needs."""

    class Runtime:
        opened = 0

        def __init__(self, logger: ILogger) -> None:
            self.logger = logger

        def deserialize_cuda_engine(self, content: bytes) -> Engine | None:
            try:
                plan = json.loads(content)
            except ValueError:
                self.logger.log(Severity.WARNING, "a warning")
                self.logger.log(Severity.ERROR, "magic tag\n does not match")
                return None
            Runtime.opened += 1
            return Engine(gpu, plan)

    return SimpleNamespace(
        ILogger=ILogger,
        Runtime=Runtime,
        DataType=SimpleNamespace(FLOAT="float", INT64="int64", INT32="int32"),
        TensorIOMode=SimpleNamespace(INPUT="input"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user managed"),
        HardwareCompatibilityLevel=SimpleNamespace(NONE=0, AMPERE_PLUS=1, SAME_COMPUTE_CAPABILITY=2),
    )
