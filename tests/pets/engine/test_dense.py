"""The engine for TensorRT, with the torch module of its plan instead of TensorRT, and banks at fixed addresses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.truth import Exported, Truth, random_terms
from tests.pets.engine.comparing import compare
from tests.pets.engine.conftest import VOCABULARY, Bench
from tests.pets.engine.dense import OPTIONS, banks_at, load, terms_of
from tidal.engines import Artifact
from tidal.errors import InvalidArgument, Unavailable, Unsupported
from tidal.pets.engine.description import read_description
from tidal.pets.opening import open_pets_engine
from tidal.pets.tensorrt_engine.engine import TensorRtPetsEngine, open_dense_engine, open_tensorrt_engine
from tidal.pets.tensorrt_engine.form import FORM_FILE, check_terms, read_form
from tidal_builders.pets.dense import dense_form, dense_module


class TorchPlan:
    """The torch module that the plan is compiled from; banks are read from their addresses, as TensorRT does."""

    def __init__(self, artifact: Artifact, resident: Mapping[str, int]) -> None:
        self.banks = banks_at(artifact, resident)
        folder = artifact.path.parent
        self.module, _, _ = dense_module(folder, read_form(folder))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        tensors = {name: torch.from_numpy(array) for name, array in {**inputs, **self.banks}.items()}
        with torch.inference_mode():
            return {"pooled": self.module(**tensors)["pooled"].numpy()}


@pytest.fixture(scope="module")
def plan(exported: Callable[..., Exported], tmp_path_factory: Any) -> Exported:
    """An encoder with the form of its plan; TensorRT itself is not available here."""
    base = exported("wide_bert", "tensorrt")
    folder = tmp_path_factory.mktemp("plan") / "engine"
    shutil.copytree(base.folder, folder)
    form = dense_form(read_description(folder), OPTIONS, max_batch=16, max_length=40, plan="model.onnx")
    (folder / FORM_FILE).write_text(form.model_dump_json())
    return Exported(base.model, folder, base.layers)


@pytest.fixture(scope="module")
def engine(plan: Exported) -> TensorRtPetsEngine:
    return open_dense_engine(plan.folder, TorchPlan, torch.device("cpu"))


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


def test_banks_have_capacity_for_the_requested_number_of_tasks(plan: Exported) -> None:
    engine = open_dense_engine(plan.folder, TorchPlan, torch.device("cpu"))
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
