"""Runs TensorRT plans with memory that is allocated once, one stream per engine and one captured graph per shape."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorrt as trt

from tidal.device import gpu, library_version
from tidal.engines.base import Artifact, Dim, Engine, TensorSpec, check_inputs
from tidal.engines.cuda import Buffer, DeviceMemory, Stream
from tidal.engines.plan_profiles import Profile, holds, serving
from tidal.engines.tensorrt.messages import MESSAGES
from tidal.errors import Internal, InvalidArgument

Array = npt.NDArray[Any]

_DTYPES = {trt.DataType.FLOAT: "float32", trt.DataType.INT64: "int64", trt.DataType.INT32: "int32"}


class TensorRtPlan:
    """A plan in device memory, whose weights are shared by all engines of a process that are opened from its file.

    Args:
        path: File of the plan.

    Raises:
        InvalidArgument: This TensorRT cannot open the plan on this GPU.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runtime = trt.Runtime(MESSAGES)  # must exist as long as the engine that it deserialises
        self.engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            raise InvalidArgument(
                f"{path} cannot be opened by TensorRT {library_version('tensorrt')} on {gpu()}: "
                f"{MESSAGES.reason()}; a plan runs on the version and the kind of GPU that it was built with"
            )
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self.inputs = tuple(n for n in names if self.engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT)
        self.outputs = tuple(
            TensorSpec(name, self.dtype(name), _sizes(self.engine.get_tensor_shape(name)))
            for name in names
            if name not in self.inputs
        )
        self.profiles: tuple[Profile, ...] = tuple(
            {name: self._bounds(name, index) for name in self.inputs}
            for index in range(self.engine.num_optimization_profiles)
        )

    def dtype(self, name: str) -> np.dtype[Any]:
        """Data type of a tensor."""
        return np.dtype(_DTYPES[self.engine.get_tensor_dtype(name)])

    def _bounds(self, name: str, profile: int) -> tuple[tuple[int, int], ...]:
        low, _, high = self.engine.get_tensor_profile_shape(name, profile)
        return tuple(zip(_sizes(low), _sizes(high), strict=True))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A shape that is ready to run.

    Attributes:
        inputs: Views of host memory to fill, by name.
        outputs: Views of host memory to read, by name.
        launch: Starts the work.
        context: Context that does the work; it must exist and keep its shapes as long as they are prepared.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    launch: Callable[[], None]
    context: trt.IExecutionContext


class TensorRtEngine:
    """An engine of one stream, whose execution contexts share the memory for their intermediate results.

    Copies to the device, kernels and copies to the host are captured as a CUDA graph for each batch size when the
    engine is opened, so that each run is one launch. Each graph has a context of its own, because a graph is valid only
    while its context keeps the shapes that it was captured with. With a dynamic length there are too many shapes to
    keep: there is one context per profile, and the work is enqueued in each run.

    Args:
        plan: The plan to run.
        shapes: Dimensions of all inputs by name.
        resident: Device addresses of inputs in memory that the caller fills and keeps, by name. They have fixed shapes
            and are not passed to `run`.
    """

    def __init__(
        self, plan: TensorRtPlan, shapes: Mapping[str, tuple[Dim, ...]], resident: Mapping[str, int] | None = None
    ) -> None:
        self._plan = plan
        resident = resident or {}
        self._resident = {name: _fixed(name, shapes[name]) for name in resident}
        given = {name: dims for name, dims in shapes.items() if name not in resident}
        self._inputs = tuple(TensorSpec(name, plan.dtype(name), tuple(dims)) for name, dims in given.items())
        self._static = all(isinstance(dim, int) for dims in given.values() for dim in dims[1:])
        self._stream = Stream()
        self._profiles = serving(plan.profiles, shapes)
        sizes = [plan.engine.get_device_memory_size_for_profile_v2(index) for index in self._profiles]
        # One at a time runs on the stream, so that all contexts can use the same memory.
        self._scratch = DeviceMemory(max(1, *sizes))
        self._contexts = {index: self._open(index) for index in self._profiles}
        self._buffers = {name: Buffer(size) for name, size in self._largest().items()}
        self._addresses = {**resident, **{name: each.device for name, each in self._buffers.items()}}
        for context in self._contexts.values():
            self._bind(context)
        self._captured: dict[tuple[tuple[int, ...], ...], _Prepared] = {}
        if self._static:
            for sizes_of_batch in self._batches(given):
                key = tuple(sizes_of_batch[spec.name] for spec in self._inputs)
                self._captured[key] = self._capture(sizes_of_batch)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that `run` requires."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs that `run` returns; -1 means that a size depends on the inputs."""
        return self._plan.outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Engine.run`."""
        check_inputs(self._inputs, inputs)
        key = tuple(inputs[spec.name].shape for spec in self._inputs)
        prepared = self._captured.get(key)
        if prepared is None:
            shapes = {spec.name: inputs[spec.name].shape for spec in self._inputs}
            prepared = self._prepare(self._contexts[self._profile(shapes)], shapes)
        for name, view in prepared.inputs.items():
            np.copyto(view, inputs[name])
        prepared.launch()
        self._stream.synchronize()
        return {name: view.copy() for name, view in prepared.outputs.items()}

    def _open(self, profile: int) -> trt.IExecutionContext:
        context = self._plan.engine.create_execution_context(
            strategy=trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if context is None or not context.set_optimization_profile_async(profile, self._stream.handle):
            raise Internal(f"TensorRT cannot open a context of {self._plan.path}: {MESSAGES.reason()}")
        context.set_device_memory(self._scratch.address, self._scratch.size)
        self._stream.synchronize()
        return context

    def _bind(self, context: trt.IExecutionContext) -> None:
        for name, address in self._addresses.items():
            context.set_tensor_address(name, address)

    def _batches(self, shapes: Mapping[str, tuple[Dim, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
        """Yield the shapes of the inputs at each batch size."""
        ranges = [dim for dims in shapes.values() for dim in dims if not isinstance(dim, int)]
        low, high = ranges[0] if ranges else (1, 1)
        for rows in range(low, high + 1):
            yield {name: tuple(dim if isinstance(dim, int) else rows for dim in dims) for name, dims in shapes.items()}

    def _profile(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        return next(index for index in self._profiles if holds(self._plan.profiles[index], shapes))

    def _largest(self) -> dict[str, int]:
        """Size in bytes of every input and output at the largest shapes of the profiles."""
        sizes: dict[str, int] = {}
        for index, context in self._contexts.items():
            profile = self._plan.profiles[index]
            shapes = {name: tuple(high for _, high in dims) for name, dims in profile.items()}
            for name, shape in (shapes | self._output_shapes(context, shapes)).items():
                if name in self._resident:
                    continue
                size = int(np.prod(shape)) * self._plan.dtype(name).itemsize
                sizes[name] = max(size, sizes.get(name, 0))
        return sizes

    def _output_shapes(
        self, context: trt.IExecutionContext, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """Set a context's input shapes and return the shapes of its outputs."""
        if not all(context.set_input_shape(name, shape) for name, shape in shapes.items()) or context.infer_shapes():
            raise Internal(f"TensorRT does not accept the shapes {dict(shapes)}: {MESSAGES.reason()}")
        return {spec.name: _sizes(context.get_tensor_shape(spec.name)) for spec in self._plan.outputs}

    def _prepare(self, context: trt.IExecutionContext, shapes: Mapping[str, tuple[int, ...]]) -> _Prepared:
        output_shapes = self._output_shapes(context, {**shapes, **self._resident})
        inputs = {name: self._buffers[name].view(shape, self._plan.dtype(name)) for name, shape in shapes.items()}
        outputs = {
            name: self._buffers[name].view(shape, self._plan.dtype(name)) for name, shape in output_shapes.items()
        }

        def enqueue() -> None:
            for name, view in inputs.items():
                self._stream.to_device(self._buffers[name], view.nbytes)
            if not context.execute_async_v3(self._stream.handle):
                raise Internal(f"TensorRT cannot run {self._plan.path}: {MESSAGES.reason()}")
            for name, view in outputs.items():
                self._stream.to_host(self._buffers[name], view.nbytes)

        return _Prepared(inputs, outputs, enqueue, context)

    def _capture(self, shapes: Mapping[str, tuple[int, ...]]) -> _Prepared:
        """Capture the work of a shape with a context of its own."""
        context = self._open(self._profile(shapes))
        self._bind(context)
        prepared = self._prepare(context, shapes)
        for view in prepared.inputs.values():
            view[...] = 1
        # The first run of a shape triggers TensorRT's lazy initialisation, which must not be captured.
        prepared.launch()
        self._stream.synchronize()
        return _Prepared(prepared.inputs, prepared.outputs, self._stream.capture(prepared.launch).launch, context)


_plans: weakref.WeakValueDictionary[tuple[Path, int, int], TensorRtPlan] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def open_engines(artifact: Artifact, *, contexts: int, threads: int) -> tuple[Engine, ...]:
    """Open a plan for shapes that it has profiles for; see `registry.open_engines`.

    Raises:
        InvalidArgument: The file is not a plan for this TensorRT and this GPU, its inputs are not those of
            `artifact.shapes`, or it was not built for these shapes.
    """
    plan = _open_plan(artifact)
    return tuple(TensorRtEngine(plan, artifact.shapes) for _ in range(contexts))


def open_resident(artifact: Artifact, resident: Mapping[str, int]) -> TensorRtEngine:
    """Open a plan with inputs that stay in device memory.

    Args:
        artifact: The plan and the shapes to open it with.
        resident: Device addresses of inputs by name; see `TensorRtEngine`.

    Raises:
        InvalidArgument: See `open_engines`.
    """
    return TensorRtEngine(_open_plan(artifact), artifact.shapes, resident)


def _open_plan(artifact: Artifact) -> TensorRtPlan:
    file = artifact.path.stat()
    with _opening:
        key = artifact.path.resolve(), file.st_mtime_ns, file.st_size
        plan = _plans.get(key)
        if plan is None:
            plan = _plans[key] = TensorRtPlan(artifact.path)
    if set(plan.inputs) != set(artifact.shapes):
        raise InvalidArgument(
            f"{artifact.path} has the inputs {sorted(plan.inputs)}; expected {sorted(artifact.shapes)}"
        )
    if not serving(plan.profiles, artifact.shapes):
        raise InvalidArgument(
            f"{artifact.path} was not built for the shapes {dict(artifact.shapes)}; it has the profiles {plan.profiles}"
        )
    return plan


def _fixed(name: str, dims: tuple[Dim, ...]) -> tuple[int, ...]:
    fixed = tuple(dim for dim in dims if isinstance(dim, int))
    if len(fixed) != len(dims):
        raise InvalidArgument(
            f"input '{name}', which stays in device memory, has the shape {dims}; expected a fixed shape"
        )
    return fixed


def _sizes(dims: trt.Dims) -> tuple[int, ...]:
    return tuple(dims[axis] for axis in range(len(dims)))
