"""TensorRT engines: a plan built for given shapes, whose contexts share its weights and run captured CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tidal.engines.base import Dim, Precision
from tidal.engines.tensorrt.build import specialise_engine
from tidal.engines.tensorrt.runtime import open_engines

if TYPE_CHECKING:
    import torch

__all__ = ["FILE", "STORED_AS", "compile_engine", "open_engines", "specialise_engine"]

# The network is strongly typed: a plan computes in the types of its ONNX file.
STORED_AS: dict[Precision, Precision] = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
FILE = "model.onnx"


def compile_engine(
    module: torch.nn.Module,
    folder: Path,
    *,
    precision: Precision,
    shapes: Mapping[str, tuple[Dim, ...]],
    example: Mapping[str, npt.NDArray[Any]],
    calibration: Sequence[Mapping[str, npt.NDArray[Any]]],
) -> None:
    """Export a torch module as ONNX into `folder`, from which `specialise_engine` builds plans."""
    from tidal.engines.exporting import export_program, write_onnx

    write_onnx(export_program(module, precision=precision, shapes=shapes, example=example), folder / FILE)
