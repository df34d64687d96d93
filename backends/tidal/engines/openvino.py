"""OpenVINO engines: one compiled model, whose streams are the contexts and share its weights."""

from __future__ import annotations

import contextlib
import io
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from tidal.device import cpu
from tidal.engines.base import Artifact, Dim, Engine, Precision, TensorSpec, check_inputs
from tidal.engines.first_token import keep_first_token
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
# How much of the outliers of activations goes to the weights before both become int8 (SmoothQuant's alpha), instead of
# nncf's 0.95. all-MiniLM-L6-v2, 300 pairs of STSbenchmark: rank correlation of the similarities with the source's
# 0.9987 instead of 0.9977, smallest cosine 0.986 instead of 0.958 (chosen on these pairs; others were not measured).
_SMOOTHING = 0.5


class OpenVinoEngine:
    """One infer request of a compiled model.

    Args:
        compiled: The compiled model.
        inputs: Declared inputs.
        outputs: Names of the outputs; compiling may add names of inner tensors to a port.

    Attributes:
        compiled: The compiled model.
    """

    def __init__(self, compiled: ov.CompiledModel, inputs: tuple[TensorSpec, ...], outputs: Sequence[str]) -> None:
        self.compiled = compiled
        self._request = compiled.create_infer_request()
        self.inputs = inputs
        self.outputs = tuple(
            TensorSpec(name, np.dtype(port.element_type.to_dtype()), _declared(port.partial_shape))
            for name, port in zip(outputs, compiled.outputs, strict=True)
        )
        self._ports = [next(i for i, port in enumerate(compiled.inputs) if s.name in port.names) for s in inputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; see `Engine.run`."""
        arrays = self._set(inputs)
        self._request.infer(share_outputs=True)
        del arrays
        return self._results()

    def start(self, inputs: Mapping[str, Array]) -> OpenVinoRun:
        """Start one batch on threads of OpenVINO; see `AsyncEngine.start`."""
        arrays = self._set(inputs)
        self._request.start_async()
        return OpenVinoRun(self._request, self._results, arrays)

    def _set(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Set the inputs of the next run.

        OpenVINO reads the arrays in place, which must be contiguous and writeable, and does not keep them alive: the
        caller keeps the returned arrays until the run has ended.
        """
        check_inputs(self.inputs, inputs)
        arrays = [_contiguous(inputs[spec.name]) for spec in self.inputs]
        for port, array in zip(self._ports, arrays, strict=True):
            self._request.set_input_tensor(port, ov.Tensor(array, shared_memory=True))
        return arrays

    def _results(self) -> dict[str, Array]:
        # The request's output memory is overwritten by its next run.
        return {spec.name: self._request.get_output_tensor(i).data.copy() for i, spec in enumerate(self.outputs)}


class OpenVinoRun:
    """A batch that runs; see `StartedRun`.

    Args:
        request: Request that runs it.
        results: Returns its outputs.
        inputs: Its inputs, which have to live until it has ended.
    """

    def __init__(self, request: ov.InferRequest, results: Callable[[], dict[str, Array]], inputs: list[Array]) -> None:
        self._request = request
        self._results = results
        self._inputs = inputs

    def wait(self, timeout_s: float | None = None) -> dict[str, Array] | None:
        """See `StartedRun.wait`; OpenVINO counts whole milliseconds."""
        if timeout_s is None:
            self._request.wait()
        elif not self._request.wait_for(math.ceil(timeout_s * 1e3)):
            return None
        return self._results()


def open_engines(artifact: Artifact, *, contexts: int, threads: int, queued: int = 0) -> tuple[Engine, ...]:
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
            "ENABLE_CPU_PINNING": pins(threads),
        },
    )
    granted = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if granted != hint:
        raise Unsupported(f"this processor does not support {artifact.precision}: OpenVINO uses {granted} instead")
    specs = tuple(TensorSpec(name, dtypes[name], tuple(dims)) for name, dims in artifact.shapes.items())
    outputs = [port.any_name for port in model.outputs]
    return tuple(OpenVinoEngine(compiled, specs, outputs) for _ in range(contexts + queued))


def pins(threads: int) -> bool:
    """Whether an engine's threads are pinned to cores: if it has one for every core.

    Otherwise, after a pause of 40 ms, two threads took as long as one on two cores of an Intel Xeon with Linux 6.18.
    Engines of fewer threads would be pinned to the same cores, those of other models and processes too.

    Args:
        threads: Threads of the engine.
    """
    return 1 < len(os.sched_getaffinity(0)) <= threads


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
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    inputs = {name: torch.from_numpy(array) for name, array in example.items()}
    declared = [
        (name, ov.PartialShape([dim if isinstance(dim, int) else -1 for dim in dims]), ov.Type(example[name].dtype))
        for name, dims in shapes.items()
    ]
    with warnings.catch_warnings(), torch.no_grad(), _unreported():
        warnings.simplefilter("ignore")  # the tracer warns about Python branches; the result is verified later
        # Without the tracer's own check, which traces all a second time.
        decoder = TorchScriptPythonDecoder(module.eval(), example_input=inputs, trace_kwargs={"check_trace": False})
        model = ov.convert_model(decoder, input=declared)
        outputs = module(**inputs)
    # The converter leaves names of inner tensors on some ports; each port must have only its own name.
    for port, name in _named(model.inputs, inputs) + _named(model.outputs, outputs):
        port.get_tensor().set_names({name})
    keep_first_token(model)
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
        raise InvalidArgument("precision int8 requires calibration samples; got none")
    # nncf prints progress bars to standard output, which is reserved for the command's result.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return nncf.quantize(
            model,
            nncf.Dataset([dict(sample) for sample in calibration]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(calibration),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE if _saturates() else None,
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING),
            ),
        )


def _saturates() -> bool:
    """Whether this processor adds pairs of int8 products in 16 bits, where they overflow unless weights have 7 bits."""
    features = cpu().features
    return "avx2" in features and not any("vnni" in name or "amx" in name for name in features)


@cache
def _core() -> ov.Core:
    return ov.Core()


def _contiguous(array: Array) -> Array:
    """Return the array if OpenVINO can read it in place, else a copy; `np.require` alone takes 2 µs."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else np.require(array, requirements=["C", "W"])


def _partial_shape(dims: tuple[Dim, ...]) -> ov.PartialShape:
    return ov.PartialShape([ov.Dimension(*((dim,) if isinstance(dim, int) else dim)) for dim in dims])


def _declared(shape: ov.PartialShape) -> tuple[int, ...]:
    return tuple(dim.get_length() if dim.is_static else -1 for dim in shape)


def _first_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
