"""Makes the TensorRT plan of an encoder for tasks with dense terms: its limits, its ONNX file, and the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tidal.engines import PlanOptions, compile_engine, engine_file, specialise_engine
from tidal.engines.base import Dim
from tidal.pets.engine.description import Description, read_description
from tidal.pets.tensorrt_engine.form import FORM_FILE, DenseForm, bank_names, bottleneck_layers, input_shapes
from tidal.pets.tensorrt_engine.module import DenseModule
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.tasks import SCALAR
from tidal.pets.torch_engine.weights import as_tensors, read_weights
from tidal.tensor_file import Array
from tidal_builders.pets.spec import PetsPlanOptions


def compile_dense(folder: Path, options: PetsPlanOptions, *, max_batch: int, max_length: int) -> None:
    """Make a plan in the folder of an encoder that was exported for torch.

    Args:
        folder: Folder of the encoder; it gets `model.onnx`, the plan and `dense.json`.
        options: Limits of the tasks, and options of TensorRT.
        max_batch: Largest number of rows.
        max_length: Largest number of tokens of a row.

    Raises:
        Unsupported: TensorRT is not installed, there is no GPU, or the encoder's layers have more than two sizes.
        Internal: TensorRT fails to build the plan.
    """
    form = dense_form(read_description(folder), options, max_batch=max_batch, max_length=max_length)
    module, shapes, example = dense_module(folder, form)
    compile_engine("tensorrt", module, folder, precision="fp32", shapes=shapes, example=example)
    made = PlanOptions.model_validate(options.model_dump(include=set(PlanOptions.model_fields)))
    (plan,) = specialise_engine("tensorrt", folder / engine_file("tensorrt"), [shapes], made)
    form = form.model_copy(update={"plan": plan.name})
    (folder / FORM_FILE).write_text(form.model_dump_json(indent=1) + "\n", encoding="utf-8")


def dense_form(
    description: Description, options: PetsPlanOptions, *, max_batch: int, max_length: int, plan: str = ""
) -> DenseForm:
    """The limits of a plan: banks with space for `options.tasks` tasks of the largest dense kind."""
    rows = dict.fromkeys(bank_names(description), 0)
    low_rank, biases, adapters = dict(rows), dict(rows), dict(rows)
    for number, spec in enumerate(description.linear):
        biases[spec.outputs] += 1
        low_rank[spec.outputs] += options.rank
        low_rank[spec.inputs] += options.rank
        if number in bottleneck_layers(description):
            adapters[spec.outputs] += 2 * options.bottleneck + 1
            adapters[SCALAR] += options.bottleneck
    norms = dict(rows)
    for norm in description.norm:
        norms[norm.width] += 2
    return DenseForm(
        plan=plan,
        max_batch=max_batch,
        max_length=max_length,
        rank=options.rank,
        bottleneck=options.bottleneck,
        banks={
            length: 1 + norms[length] + options.tasks * (norms[length] + max(own[length] for own in kinds))
            for length in rows
            for kinds in [(low_rank, biases, adapters)]
        },
    )


def dense_module(folder: Path, form: DenseForm) -> tuple[DenseModule, dict[str, tuple[Dim, ...]], dict[str, Array]]:
    """Make the module of an encoder, its inputs' dimensions, and an example of its inputs."""
    description, weights = read_weights(folder)
    encoder = TorchEncoder(description, as_tensors(weights), torch.device("cpu"))
    shapes = input_shapes(form, description)
    names = bank_names(description)
    # Larger than 1 in every variable dimension, so that none is taken for a fixed one.
    example: dict[str, Array] = {
        name: np.zeros([dim if isinstance(dim, int) else min(dim[1], 2 + 3 * axis) for axis, dim in enumerate(dims)],
                       np.float32 if name in names.values() else np.int64)
        for name, dims in shapes.items()
    }  # fmt: skip
    example["lengths"] += 1
    return DenseModule(encoder, description, form).eval(), shapes, example
