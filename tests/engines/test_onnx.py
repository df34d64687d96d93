"""The ONNX file from which TensorRT plans are built, run by other implementations of ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import openvino as ov
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from tests.engines.support import MAX_BATCH, MAX_LENGTH, NAMES, Batch, Logits, make_batch
from tidal.engines import Precision
from tidal.engines.exporting import export_program, write_onnx

pytestmark = pytest.mark.slow

Reference = Callable[[Batch], npt.NDArray[np.float32]]

# Bounds on the logit error of this model, whose weights are wider than a trained model's. Measured with two layers:
# 4e-6 and 0.1.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "bf16": 0.25}
STORED: dict[Precision, int] = {
    "fp32": onnx.TensorProto.FLOAT,
    "bf16": onnx.TensorProto.BFLOAT16,
}


class Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.full((4,), 2.0))

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"doubled": rows * self.factor}


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def precision(request: pytest.FixtureRequest) -> Precision:
    found: Precision = request.param
    return found


@pytest.fixture(scope="module")
def path(precision: Precision, source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(precision) / "model.onnx"
    shapes = dict.fromkeys(NAMES, ((1, MAX_BATCH), (1, MAX_LENGTH)))
    write_onnx(export_program(Logits(source), precision=precision, shapes=shapes, example=make_batch(2, 16)), path)
    return path


def test_the_file_is_valid_and_has_the_interface_of_the_module(path: Path) -> None:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == list(NAMES)
    for value in model.graph.input:
        assert value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        assert [dim.HasField("dim_param") for dim in value.type.tensor_type.shape.dim] == [True, True]
    (logits,) = model.graph.output
    assert (logits.name, logits.type.tensor_type.elem_type) == ("logits", onnx.TensorProto.FLOAT)


def test_tensors_have_the_type_of_the_precision(path: Path, precision: Precision) -> None:
    """A strongly typed network computes in the types of its file, so all weights need the precision's type."""
    weights = [tensor for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 2]
    kinds = {tensor.data_type for tensor in weights} - {onnx.TensorProto.INT64}
    assert kinds == {STORED[precision]}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 17), (3, 24), (MAX_BATCH, MAX_LENGTH)])
def test_the_logits_equal_those_of_the_module(
    path: Path, precision: Precision, reference: Reference, batch: int, length: int
) -> None:
    inputs = make_batch(batch, length, seed=length)
    (logits,) = ReferenceEvaluator(onnx.load(path)).run(None, inputs)
    error = np.abs(logits - reference(inputs)).max()
    print(f"{precision} {batch}x{length}: max abs error {error:.3g}")
    assert logits.dtype == np.float32
    assert error <= TOLERANCE[precision]
    if precision != "fp32":
        assert error > 1e-5  # otherwise it was not computed at this precision


def test_a_second_implementation_agrees(path: Path, precision: Precision, reference: Reference) -> None:
    if precision == "bf16":
        pytest.skip("OpenVINO reads this graph's bf16 wrongly: its logits are off by more than 1")
    compiled = ov.compile_model(ov.Core().read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch, length in ((1, 5), (4, 33)):
        inputs = make_batch(batch, length)
        assert np.abs(compiled(inputs)["logits"] - reference(inputs)).max() <= TOLERANCE[precision]


@pytest.mark.parametrize(("precision", "stored"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_an_exported_program_has_the_type_of_the_precision(precision: Precision, stored: torch.dtype) -> None:
    inputs = {"rows": np.ones((2, 4), np.float32)}
    program = export_program(Doubled(), precision=precision, shapes={"rows": ((1, MAX_BATCH), 4)}, example=inputs)
    assert {parameter.dtype for parameter in program.parameters()} == {stored}
