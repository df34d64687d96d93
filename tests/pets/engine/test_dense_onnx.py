"""The ONNX file of a plan for TensorRT, run by OpenVINO instead of TensorRT.

Marked like tests with a server, because the export takes as long as a server's start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import openvino as ov
import pytest
import torch

from testing.truth import Exported
from tests.pets.engine.comparing import compare
from tests.pets.engine.conftest import Bench
from tests.pets.engine.dense import OPTIONS, banks_at, load
from tidal.engines import Artifact
from tidal.engines.exporting import export_program, write_onnx
from tidal.pets.tensorrt_engine.engine import open_dense_engine
from tidal.pets.tensorrt_engine.form import read_form
from tidal_builders.pets import dense
from tidal_builders.pets.dense import compile_dense

pytestmark = pytest.mark.server


class OpenVinoPlan:
    """The plan's ONNX file in OpenVINO; banks are read from their addresses, as TensorRT does."""

    def __init__(self, artifact: Artifact, resident: Mapping[str, int]) -> None:
        core = ov.Core()
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        self.compiled = core.compile_model(core.read_model(artifact.path), "CPU", options)
        self.banks = banks_at(artifact, resident)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        found = self.compiled({**inputs, **self.banks})
        return {"pooled": found["pooled"]}


@pytest.fixture(scope="module")
def plan(exported: Callable[..., Exported], tmp_path_factory: Any) -> Exported:
    """An encoder with its ONNX file for TensorRT; TensorRT itself is not available here."""
    base = exported("wide_bert", "tensorrt")
    folder = tmp_path_factory.mktemp("plan") / "engine"
    shutil.copytree(base.folder, folder)
    asked: list[Any] = []

    def compile_engine(kind: str, module: Any, folder: Path, *, precision: Any, shapes: Any, example: Any) -> None:
        program = export_program(module, precision=precision, shapes=shapes, example=example)
        write_onnx(program, folder / "model.onnx")

    def specialise(kind: str, path: Path, shapes: Any, options: Any) -> tuple[Path, ...]:
        asked.append((kind, path, shapes, type(options).__name__))
        return (path,)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "compile_engine", compile_engine)
        patch.setattr(dense, "specialise_engine", specialise)
        patch.setattr(dense, "engine_file", lambda _kind: "model.onnx")
        compile_dense(folder, OPTIONS, max_batch=16, max_length=40)
    ((kind, path, _, options),) = asked
    assert (kind, path, options) == ("tensorrt", folder / "model.onnx", "PlanOptions")
    return Exported(base.model, folder, base.layers)


def test_all_dense_kinds_share_a_batch(plan: Exported) -> None:
    engine = open_dense_engine(plan.folder, OpenVinoPlan, torch.device("cpu"))
    tasks = load(engine, plan, seed=0)
    rows = [(loaded, 1 + 7 * place % 40) for place, loaded in enumerate([*tasks.values(), *tasks.values()])]
    compare(Bench(plan, engine, {}), rows, seed=0, extra=3)
    compare(Bench(plan, engine, {}), rows[:1], seed=0)


def test_the_file_has_banks_and_row_numbers_as_inputs(plan: Exported) -> None:
    model = onnx.load(plan.folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    form = read_form(plan.folder)
    banks = {name: kind for name, kind in inputs.items() if name.startswith("bank_")}
    shapes = {tuple(dim.dim_value for dim in kind.shape.dim) for kind in banks.values()}
    assert shapes == {(rows, length) for length, rows in form.banks.items()}
    assert {kind.elem_type for kind in banks.values()} == {onnx.TensorProto.FLOAT}
    assert {kind.elem_type for name, kind in inputs.items() if name not in banks} == {onnx.TensorProto.INT64}
    # TensorRT is slow at scattered writes and at loops.
    assert not {node.op_type for node in model.graph.node} & {"ScatterND", "ScatterElements", "Loop", "If"}
