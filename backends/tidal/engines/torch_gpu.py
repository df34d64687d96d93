"""Torch engines on a GPU: one captured CUDA graph per shape for fixed lengths, else one dynamic compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.export.passes import move_to_device_pass

from tidal.engines.base import TensorSpec, check_inputs
from tidal.errors import Unsupported

Array = npt.NDArray[Any]
Program = Callable[..., dict[str, torch.Tensor]]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Captured:
    """A captured forward pass for one shape, between tensors at fixed addresses."""

    pinned: Tensors
    inputs: Tensors
    outputs: Tensors
    graph: torch.cuda.CUDAGraph


class TorchGpuEngine:
    """One execution context of a program on the GPU, with a stream of its own; all contexts share the weights.

    Args:
        program: The program as a function of tensors by keyword.
        inputs: Declared inputs.
        outputs: Declared outputs.
        static: Whether CUDA graphs are captured, one per shape.
    """

    def __init__(
        self, program: Program, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *, static: bool
    ) -> None:
        self._program = program
        self.inputs = inputs
        self.outputs = outputs
        self._static = static
        self._stream: torch.cuda.Stream = torch.cuda.Stream()
        self._captured: dict[tuple[tuple[int, ...], ...], _Captured] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Engine.run`. Waiting for the GPU releases the GIL."""
        check_inputs(self.inputs, inputs)
        arrays = {s.name: torch.from_numpy(np.require(inputs[s.name], requirements=["C", "W"])) for s in self.inputs}
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            outputs = self._replay(arrays) if self._static else self._program(**_on_gpu(arrays))
            host = {name: tensor.to("cpu", non_blocking=True) for name, tensor in outputs.items()}
        self._stream.synchronize()
        return {name: tensor.numpy().copy() for name, tensor in host.items()}

    def _replay(self, arrays: Tensors) -> Tensors:
        key = tuple(tuple(tensor.shape) for tensor in arrays.values())
        captured = self._captured.get(key)
        if captured is None:
            captured = self._captured[key] = self._capture(arrays)
        for name, tensor in arrays.items():
            captured.inputs[name].copy_(captured.pinned[name].copy_(tensor), non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, arrays: Tensors) -> _Captured:
        pinned = {name: tensor.clone().pin_memory() for name, tensor in arrays.items()}
        inputs = _on_gpu(pinned)
        # Libraries initialise themselves in their first calls, which must not be captured.
        for _ in range(3):
            self._program(**inputs)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._program(**inputs)
        return _Captured(pinned, inputs, outputs, graph)


def gpu_program(exported: torch.export.ExportedProgram, *, static: bool) -> Program:
    """Move an exported program to the GPU.

    Args:
        exported: The exported program.
        static: Whether to run it unchanged, for CUDA graphs, instead of compiling it once for all shapes.

    Raises:
        Unsupported: This torch was built without CUDA, or detects no GPU.
    """
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} detects no GPU here: install a CUDA build, or set `device: cpu`")
    module = move_to_device_pass(exported, "cuda").module(check_guards=False)
    return cast(Program, module if static else torch.compile(module, dynamic=True))


def _on_gpu(tensors: Tensors) -> Tensors:
    return {name: tensor.to("cuda", non_blocking=True) for name, tensor in tensors.items()}
