"""Torch engines: an exported program, shared by all contexts. On a GPU see `torch_gpu`."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from tidal.engines.base import Artifact, Dim, Engine, Precision, TensorSpec, check_inputs
from tidal.engines.exporting import export_program
from tidal.errors import InvalidArgument

Array = npt.NDArray[Any]

# The precision that a model is stored in, by the precision that it runs at.
STORED_AS: dict[Precision, Precision] = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}

FILE = "model.pt2"
_environment = threading.Lock()


class TorchEngine:
    """One execution context of an exported program. The program is stateless, so all contexts share it.

    Args:
        program: The program as a function of tensors by keyword.
        inputs: Declared inputs.
        outputs: Declared outputs.
    """

    def __init__(
        self,
        program: Callable[..., dict[str, torch.Tensor]],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        self._program = program
        self.inputs = inputs
        self.outputs = outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Engine.run`. Each operator releases the GIL while it computes."""
        check_inputs(self.inputs, inputs)
        tensors = {
            spec.name: torch.from_numpy(np.require(inputs[spec.name], requirements=["C", "W"])) for spec in self.inputs
        }
        with torch.inference_mode():
            outputs = self._program(**tensors)
        return {name: tensor.numpy().copy() for name, tensor in outputs.items()}


def open_engines(artifact: Artifact, *, contexts: int, threads: int) -> tuple[Engine, ...]:
    """Load an exported program; see `registry.open_engines`.

    Torch has one number of threads for the whole process: that of the model opened last.

    Raises:
        InvalidArgument: The file cannot be read or contains pickled objects, or its inputs are not those of
            `artifact.shapes`.
        Unsupported: This torch cannot use the GPU.
    """
    exported = _load(artifact.path)
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if "val" in node.meta}
    names_in = exported.graph_signature.user_inputs
    if set(names_in) != set(artifact.shapes):
        raise InvalidArgument(
            f"{artifact.path} has the inputs {sorted(map(str, names_in))}; expected {sorted(artifact.shapes)}"
        )
    inputs = tuple(TensorSpec(name, _dtype(values[name]), tuple(dims)) for name, dims in artifact.shapes.items())
    # Names of the returned dictionary, in the order of the graph's outputs.
    names = cast(list[str], exported.call_spec.out_spec.context)
    results = [values[str(node)] for node in exported.graph_signature.user_outputs]
    outputs = tuple(
        TensorSpec(name, _dtype(value), tuple(size if isinstance(size, int) else -1 for size in value.shape))
        for name, value in zip(names, results, strict=True)
    )
    if artifact.device == "gpu":
        from tidal.engines.torch_gpu import TorchGpuEngine, gpu_program

        static = all(isinstance(dim, int) for dims in artifact.shapes.values() for dim in dims[1:])
        on_gpu = gpu_program(exported, static=static)
        return tuple(TorchGpuEngine(on_gpu, inputs, outputs, static=static) for _ in range(contexts))
    torch.set_num_threads(threads)
    program = exported.module(check_guards=False)  # `check_inputs` checks the shapes
    return tuple(TorchEngine(program, inputs, outputs) for _ in range(contexts))


def compile_engine(
    module: torch.nn.Module,
    folder: Path,
    *,
    precision: Precision,
    shapes: Mapping[str, tuple[Dim, ...]],
    example: Mapping[str, Array],
    calibration: Sequence[Mapping[str, Array]],
) -> None:
    """Export a torch module and save it into `folder`; see `registry.compile_engine`."""
    torch.export.save(export_program(module, precision=precision, shapes=shapes, example=example), folder / FILE)


def _load(path: Path) -> torch.export.ExportedProgram:
    """Load a program whose archive contains only tensors and a graph; a pickle could run any code."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [PurePosixPath(name) for name in archive.namelist()]
        pickled = [p.name for p in entries if p.parent.name == "constants" and p.name.startswith(("custom", "opaque"))]
        if pickled:
            raise InvalidArgument(f"{path} contains pickled objects ({pickled[0]}) and is not loaded")
        with warnings.catch_warnings(), _tensors_only():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except (OSError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{path} is not a readable exported program: {str(error).splitlines()[0]}") from None


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Make every `torch.load` inside refuse pickled objects, also where torch itself would accept them."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    with _environment:
        before = os.environ.get(name)
        os.environ[name] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def _dtype(value: torch.Tensor) -> np.dtype[Any]:
    return np.dtype(str(value.dtype).removeprefix("torch."))
