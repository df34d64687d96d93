"""OpenVINO engines: one compiled model, whose streams are the contexts and share its weights."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from tidal.engines.base import Artifact, Dim, Engine, Precision, TensorSpec, check_inputs
from tidal.errors import InvalidArgument, Unsupported
from tidal_client.extras import install_command

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

# Precision that a model is stored in, by the precision that it runs at. bf16 is chosen when the file is opened.
STORED_AS: dict[Precision, Precision] = {"fp32": "fp32", "bf16": "fp32", "int8": "int8"}

# Without a hint OpenVINO uses bf16 on processors that support it. The parts of an int8 model that are not quantised
# stay in float32: measured, bf16 has no gain there at batch 1 and adds its own error.
_HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
FILE = "model.xml"


class OpenVinoEngine:
    """One infer request of a compiled model.

    Args:
        compiled: The compiled model.
        inputs: Declared inputs.
    """

    def __init__(self, compiled: ov.CompiledModel, inputs: tuple[TensorSpec, ...]) -> None:
        self._request = compiled.create_infer_request()
        self._inputs = inputs
        self._outputs = tuple(
            TensorSpec(port.any_name, np.dtype(port.element_type.to_dtype()), _declared(port.partial_shape))
            for port in compiled.outputs
        )
        self._ports = [next(i for i, port in enumerate(compiled.inputs) if s.name in port.names) for s in inputs]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that `run` requires."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs that `run` returns; -1 means that a size depends on the inputs."""
        return self._outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Engine.run`."""
        check_inputs(self._inputs, inputs)
        # OpenVINO reads the arrays in place, which must be contiguous and writeable. It does not keep them alive: this
        # list does, until the run is over.
        arrays = [np.require(inputs[spec.name], requirements=["C", "W"]) for spec in self._inputs]
        for port, array in zip(self._ports, arrays, strict=True):
            self._request.set_input_tensor(port, ov.Tensor(array, shared_memory=True))
        self._request.infer(share_outputs=True)
        # The request's output memory is overwritten by its next run.
        return {spec.name: self._request.get_output_tensor(i).data.copy() for i, spec in enumerate(self._outputs)}


def open_engines(artifact: Artifact, *, contexts: int, threads: int) -> tuple[Engine, ...]:
    """Read, reshape and compile a model; see `registry.open_engines`.

    Raises:
        InvalidArgument: The file cannot be read, or its inputs are not those of `artifact.shapes`.
        Unsupported: This processor does not support the artifact's precision.
    """
    try:
        model = _core().read_model(artifact.path)
    except RuntimeError as error:
        raise InvalidArgument(f"{artifact.path} is not a readable OpenVINO model: {_first_line(error)}") from None
    names = {port.any_name: port for port in model.inputs}
    if set(names) != set(artifact.shapes):
        raise InvalidArgument(f"{artifact.path} has the inputs {sorted(names)}; expected {sorted(artifact.shapes)}")
    dtypes = {name: np.dtype(port.element_type.to_dtype()) for name, port in names.items()}
    model.reshape({names[name]: _partial_shape(dims) for name, dims in artifact.shapes.items()})
    hint = _HINTS[artifact.precision]
    compiled = _core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": hint,
            "PERFORMANCE_HINT": "LATENCY" if contexts == 1 else "THROUGHPUT",
            "NUM_STREAMS": contexts,
            "INFERENCE_NUM_THREADS": contexts * threads,
            # Two compiled models in one process would be pinned to the same cores.
            "ENABLE_CPU_PINNING": False,
        },
    )
    granted = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if granted != hint:
        raise Unsupported(f"this processor does not support {artifact.precision}: OpenVINO uses {granted} instead")
    specs = tuple(TensorSpec(name, dtypes[name], tuple(dims)) for name, dims in artifact.shapes.items())
    return tuple(OpenVinoEngine(compiled, specs) for _ in range(contexts))


def compile_engine(
    module: torch.nn.Module,
    folder: Path,
    *,
    precision: Precision,
    shapes: Mapping[str, tuple[Dim, ...]],
    example: Mapping[str, Array],
    calibration: Sequence[Mapping[str, Array]],
) -> None:
    """Convert a torch module and save it into `folder`; see `registry.compile_engine`."""
    import torch

    inputs = {name: torch.from_numpy(array) for name, array in example.items()}
    declared = [
        (name, ov.PartialShape([dim if isinstance(dim, int) else -1 for dim in dims]), ov.Type(example[name].dtype))
        for name, dims in shapes.items()
    ]
    with warnings.catch_warnings(), torch.no_grad(), _unreported():
        warnings.simplefilter("ignore")  # the tracer warns about Python branches; the result is verified later
        model = ov.convert_model(module.eval(), example_input=inputs, input=declared)
        outputs = module(**inputs)
    # The converter leaves names of inner tensors on some ports; each port must have only its own name.
    for port, name in _named(model.inputs, inputs) + _named(model.outputs, outputs):
        port.get_tensor().set_names({name})
    if precision == "int8":
        with _unreported():
            model = _quantise(model, calibration)
    ov.save_model(model, folder / FILE, compress_to_fp16=False)


@contextlib.contextmanager
def _unreported() -> Iterator[None]:
    """Disable the telemetry of OpenVINO's tools, which they send unless the environment looks like a CI run."""
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before


def _named(ports: Sequence[ov.Output], names: Iterable[str]) -> list[tuple[ov.Output, str]]:
    return [(next(port for port in ports if name in port.names), name) for name in names]


def _quantise(model: ov.Model, calibration: Sequence[Mapping[str, Array]]) -> ov.Model:
    try:
        import nncf
    except ImportError:
        raise Unsupported(f"precision int8 needs nncf: {install_command('build')}") from None
    if not calibration:
        raise InvalidArgument("precision int8 needs calibration samples, none were given")
    # nncf prints progress bars to standard output, which is reserved for the command's result.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return nncf.quantize(
            model,
            nncf.Dataset([dict(sample) for sample in calibration]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(calibration),
        )


@cache
def _core() -> ov.Core:
    return ov.Core()


def _partial_shape(dims: tuple[Dim, ...]) -> ov.PartialShape:
    return ov.PartialShape([ov.Dimension(*((dim,) if isinstance(dim, int) else dim)) for dim in dims])


def _declared(shape: ov.PartialShape) -> tuple[int, ...]:
    return tuple(dim.get_length() if dim.is_static else -1 for dim in shape)


def _first_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
