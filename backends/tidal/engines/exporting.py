"""Exports a torch module as a graph with bounded dynamic shapes: an exported program, or an ONNX file."""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from tidal.engines.base import Dim, Precision
from tidal.errors import Unsupported
from tidal_client.extras import install_command

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# The first version with Gelu and LayerNormalization as single operators, which TensorRT has kernels for.
_OPSET = 20


class _Widened(torch.nn.Module):
    """Wraps a module so that its outputs are float32."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

        # The exporter names a graph's inputs after the parameters of `forward`: they must be those of the module.
        @functools.wraps(module.forward)
        def forward(*args: torch.Tensor, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: tensor.float() for name, tensor in self.module(*args, **inputs).items()}

        self.forward = forward


def export_program(
    module: torch.nn.Module,
    *,
    precision: Precision,
    shapes: Mapping[str, tuple[Dim, ...]],
    example: Mapping[str, npt.NDArray[Any]],
) -> torch.export.ExportedProgram:
    """Export a module at a precision, with float32 outputs; see `registry.compile_engine` for the arguments."""
    module = module.eval()
    if precision != "fp32":
        module = copy.deepcopy(module).to(DTYPES[precision])
    # Equal bounds are one dimension: the batch and the length are the same for every input.
    dims: dict[tuple[int, tuple[int, int]], Any] = {}
    for shape in shapes.values():
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                dims.setdefault((axis, dim), torch.export.Dim(f"axis{axis}_{dim[1]}", min=dim[0], max=dim[1]))
    dynamic = {
        name: {axis: dims[axis, dim] for axis, dim in enumerate(shape) if not isinstance(dim, int)}
        for name, shape in shapes.items()
    }
    inputs = {name: torch.from_numpy(array) for name, array in example.items()}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(_Widened(module), (), kwargs=inputs, dynamic_shapes=dynamic)


def write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write an exported program as an ONNX file with the program's names of inputs and outputs.

    Every tensor has the type in which the program computes it. Weights of more than 2 GB are written to a second file.

    Args:
        program: Exported program.
        path: ONNX file to write.

    Raises:
        Unsupported: The exporter's package is not installed.
    """
    outputs = list(program.call_spec.out_spec.context)
    inputs = list(program.graph_signature.user_inputs)
    with warnings.catch_warnings(), _quiet_exporter():
        warnings.simplefilter("ignore")
        try:
            exported = torch.onnx.export(
                program, dynamo=True, input_names=inputs, output_names=outputs, opset_version=_OPSET, verbose=False
            )
        except ImportError as error:
            raise Unsupported(f"the ONNX exporter needs {error.name}: {install_command('build')}") from None
        assert exported is not None
        _rename_others(exported.model.graph, outputs)
        exported.save(path)


def _rename_others(graph: Any, outputs: Sequence[str]) -> None:
    """Rename values that the exporter named as an output, after their operator: names of values are unique in ONNX.

    Args:
        graph: Graph in the exporter's representation.
        outputs: Names of its outputs.
    """
    kept = {id(value) for value in graph.outputs}
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in outputs and id(value) not in kept:
                value.name = f"{value.name}/inner"


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Suppress the exporter's warnings about operators of packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
