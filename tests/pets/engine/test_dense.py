"""The engine for TensorRT: its ONNX file, run by OpenVINO instead of TensorRT, with banks at fixed addresses."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
import torch

from testing.truth import Exported, Truth, random_terms
from tests.pets.engine.conftest import VOCABULARY, Bench, Loaded
from tests.pets.engine.test_equality import compare
from tidal.engines import Artifact
from tidal.engines.exporting import export_program, write_onnx
from tidal.errors import InvalidArgument, Unavailable, Unsupported
from tidal.pets.engine.description import read_description
from tidal.pets.kinds.adapter import accepts_adapter
from tidal.pets.opening import open_pets_engine
from tidal.pets.tensorrt_engine.engine import TensorRtPetsEngine, open_dense_engine, open_tensorrt_engine
from tidal.pets.tensorrt_engine.form import FORM_FILE, check_terms, read_form
from tidal.pets.terms import Bottleneck, LinearTerms, TaskTerms
from tidal_builders.pets import dense
from tidal_builders.pets.dense import compile_dense, dense_form, dense_module
from tidal_builders.pets.spec import PetsPlanOptions

OPTIONS = PetsPlanOptions(rank=20, bottleneck=40, tasks=12)
KINDS = ("bias", "low_rank", "norm", "head", "bottleneck")


def terms_of(kind: str, base: Exported, seed: int) -> TaskTerms:
    """A task of a dense kind; bottlenecks have one activation and are only where adapters are accepted."""
    if kind != "bottleneck":
        return random_terms(kind, base.layers, seed)
    activation: Any = ("relu", "gelu", "silu")[seed % 3]
    linear: dict[str, LinearTerms] = {}
    for draw in range(seed, seed + 99, 3):
        drawn = random_terms("bottleneck", base.layers, draw)
        for path, own in drawn.linear.items():
            if accepts_adapter(path) and own.bottleneck is not None:
                parts = (getattr(own.bottleneck, name) for name in ("down", "down_bias", "up", "up_bias"))
                linear[path] = LinearTerms(bottleneck=Bottleneck(*parts, activation))
        if linear:
            break
    return TaskTerms(drawn.head, linear)


class OpenVinoPlan:
    """The plan's ONNX file in OpenVINO; banks are read from their addresses, as TensorRT does."""

    def __init__(self, artifact: Artifact, resident: Mapping[str, int]) -> None:
        core = ov.Core()
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        self.compiled = core.compile_model(core.read_model(artifact.path), "CPU", options)
        self._bind(artifact, resident)

    def _bind(self, artifact: Artifact, resident: Mapping[str, int]) -> None:
        self.banks = {}
        for name, address in resident.items():
            shape: Any = artifact.shapes[name]
            floats = (ctypes.c_float * int(np.prod(shape))).from_address(address)
            self.banks[name] = np.ctypeslib.as_array(floats).reshape(shape)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        found = self.compiled({**inputs, **self.banks})
        return {"pooled": found["pooled"]}


class TorchPlan(OpenVinoPlan):
    """The torch module that the ONNX file is exported from, which is faster to create."""

    def __init__(self, artifact: Artifact, resident: Mapping[str, int]) -> None:
        self._bind(artifact, resident)
        folder = artifact.path.parent
        self.module, _, _ = dense_module(folder, read_form(folder))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        tensors = {name: torch.from_numpy(array) for name, array in {**inputs, **self.banks}.items()}
        with torch.inference_mode():
            return {"pooled": self.module(**tensors)["pooled"].numpy()}


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


@pytest.fixture(scope="module")
def engine(plan: Exported) -> TensorRtPetsEngine:
    return open_dense_engine(plan.folder, OpenVinoPlan, torch.device("cpu"))


def load(engine: TensorRtPetsEngine, plan: Exported, seed: int) -> dict[str, Loaded]:
    terms = {kind: terms_of(kind, plan, seed) for kind in KINDS}
    return {kind: Loaded(engine.add(own), own, plan) for kind, own in terms.items()}


def test_all_dense_kinds_share_a_batch_while_tasks_are_added_and_removed(
    plan: Exported, engine: TensorRtPetsEngine
) -> None:
    bench = Bench(plan, engine, {})
    for seed in range(4):
        tasks = load(engine, plan, seed)
        rows = [(loaded, 1 + 7 * place % 40) for place, loaded in enumerate([*tasks.values(), *tasks.values()])]
        compare(bench, rows, seed, extra=3)
        compare(bench, rows[:1], seed)
        for loaded in tasks.values():
            engine.remove(loaded.task)
    with pytest.raises(InvalidArgument, match="task was removed"):
        engine.pooled([tasks["bias"].task], np.zeros((1, 4), int), np.asarray([4]))


@pytest.mark.parametrize("encoder", ["bert", "roberta", "distilbert_classifier"])
def test_other_encoders(exported: Callable[..., Exported], encoder: str, tmp_path: Path) -> None:
    base = exported(encoder, "tensorrt")
    shutil.copytree(base.folder, tmp_path / "engine")
    form = dense_form(read_description(base.folder), OPTIONS, max_batch=16, max_length=40, plan="model.plan")
    (tmp_path / "engine" / FORM_FILE).write_text(form.model_dump_json())
    engine = open_dense_engine(tmp_path / "engine", TorchPlan, torch.device("cpu"))
    tasks = load(engine, base, seed=1)
    rows = [(loaded, 1 + 7 * place % 40) for place, loaded in enumerate([*tasks.values(), *tasks.values()])]
    compare(Bench(base, engine, {}), rows, seed=1, types=encoder == "bert")


def test_rows_without_a_task_use_the_base(plan: Exported, engine: TensorRtPetsEngine) -> None:
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (1, 9))
    base = Truth(plan.model, random_terms("head", plan.layers, 0))
    np.testing.assert_allclose(engine.pooled([None], ids, np.asarray([9]))[0], base.pooled(ids[0].tolist()), atol=1e-4)


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


def test_banks_have_capacity_for_the_requested_number_of_tasks(plan: Exported) -> None:
    engine = open_dense_engine(plan.folder, OpenVinoPlan, torch.device("cpu"))
    bias = random_terms("bias", plan.layers, 0)
    held = [engine.add(bias) for _ in range(OPTIONS.tasks)]

    def fill() -> None:
        while True:
            held.append(engine.add(bias))

    with pytest.raises(Unavailable, match="has no space for"):
        fill()
    engine.remove(held.pop())
    held.append(engine.add(bias))


def test_tasks_that_a_plan_cannot_serve_are_refused(plan: Exported, engine: TensorRtPetsEngine) -> None:
    description, form = read_description(plan.folder), read_form(plan.folder)
    with pytest.raises(InvalidArgument, match=r"has a sparse difference at .* accepted by engine tensorrt are biases"):
        engine.add(random_terms("sparse", plan.layers, 0))
    tight = form.model_copy(update={"rank": 1, "bottleneck": 1})
    with pytest.raises(InvalidArgument, match=r"the rank at .* is \d+, the plan accepts up to 1"):
        check_terms(random_terms("low_rank", plan.layers, 0), tight, description)
    with pytest.raises(InvalidArgument, match=r"the bottleneck at .* wide, the plan accepts up to 1"):
        check_terms(terms_of("bottleneck", plan, 0), tight, description)
    with pytest.raises(InvalidArgument, match="has a bottleneck; the plan accepts none at this layer"):
        check_terms(random_terms("bottleneck", plan.layers, 0), form, description)
    ids = np.zeros((17, 4), int)
    with pytest.raises(InvalidArgument, match="17 rows of 4 tokens exceed the plan's 16 of 40"):
        engine.pooled([None] * 17, ids, np.full(17, 4))


def test_unreadable_files_and_a_missing_gpu_are_named(plan: Exported, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"dense\.json cannot be read"):
        read_form(tmp_path)
    (tmp_path / FORM_FILE).write_text("{}")
    with pytest.raises(InvalidArgument, match=r"dense\.json is not valid"):
        read_form(tmp_path)
    with pytest.raises(Unsupported, match="cannot make merged copies"):
        open_pets_engine("tensorrt", plan.folder, threads=1, device="gpu", merged=random_terms("bias", plan.layers, 0))
    if not torch.cuda.is_available():
        with pytest.raises(Unsupported, match=r"tensorrt.* is not available here|GPU"):
            open_tensorrt_engine(plan.folder)
