"""Limits and inputs of a plan, and a batch as these inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from tidal.engines.base import Dim
from tidal.errors import InvalidArgument, Unsupported
from tidal.manifest import Strict
from tidal.pets.engine.description import Description
from tidal.pets.terms import ACTIVATIONS, SparseDelta, TaskTerms
from tidal.pets.torch_engine.tasks import SCALAR, Numbers, Ranks, TorchTask, row_lengths

FORM_FILE = "dense.json"
POOLED = "pooled"


class DenseForm(Strict):
    """`dense.json`: the limits of a plan.

    A bank has one row per rank, bias, and weight of a normalisation of all tasks in memory, see `pools`.
    """

    plan: str = Field(description="file name of the plan")
    max_batch: int = Field(ge=1)
    max_length: int = Field(ge=1)
    rank: int = Field(ge=1, description="largest rank of a low-rank difference")
    bottleneck: int = Field(ge=1, description="largest width of a bottleneck")
    banks: dict[int, int] = Field(description="number of rows of each bank, by the length of a row")


def read_form(folder: Path) -> DenseForm:
    """Read `dense.json`.

    Args:
        folder: Folder of the plan.

    Raises:
        InvalidArgument: The file is missing or not valid.
    """
    path = folder / FORM_FILE
    try:
        return DenseForm.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise InvalidArgument(f"{path} is not valid: {error.errors()[0]['msg']}") from None


def bank_names(description: Description) -> dict[int, str]:
    """Names of the banks of a plan for an encoder, by the length of their rows.

    Args:
        description: Layers of the encoder.

    Raises:
        Unsupported: The encoder's layers have more than two sizes.
    """
    lengths = sorted(set(row_lengths(description)))
    if len(lengths) != 3 or lengths[0] != SCALAR:
        raise Unsupported(f"layers of {len(lengths) - 1} sizes make no plan with banks; accepted are encoders with two")
    return dict(zip(lengths, ("bank_scalars", "bank_hidden", "bank_inner"), strict=True))


def bottleneck_layers(description: Description) -> list[int]:
    """Numbers of the linear layers whose outputs may pass a bottleneck: those that write into the residual stream."""
    assert description.form is not None  # an encoder without a graph has one
    paths = {path for block in description.form.blocks for path in (block.attention_output, block.outer)}
    return [number for number, layer in enumerate(description.linear) if layer.path in paths]


def input_shapes(form: DenseForm, description: Description) -> dict[str, tuple[Dim, ...]]:
    """Dimensions of every input of a plan; those of banks are fixed."""
    rows, tokens = (1, form.max_batch), (1, form.max_length)
    layers = len(description.linear)
    shapes: dict[str, tuple[Dim, ...]] = {
        "input_ids": (rows, tokens),
        "lengths": (rows,),
        "norm_rows": (rows, len(description.norm), 2),
        "bias_rows": (rows, layers),
        "low_rank": (rows, 3, layers),
        "bottleneck": (rows, 5, len(bottleneck_layers(description))),
        "activation": (rows,),
    }
    if description.types:
        shapes["token_type_ids"] = (rows, tokens)
    names = bank_names(description)
    return shapes | {names[length]: (count, length) for length, count in sorted(form.banks.items())}


def check_terms(terms: TaskTerms, form: DenseForm, description: Description) -> None:
    """Check that a plan supports a task.

    Args:
        terms: Terms of the task.
        form: Limits of the plan.
        description: Layers of the encoder.

    Raises:
        InvalidArgument: The task has sparse differences, ranks beyond the plan's, bottlenecks at other layers than
            those of `bottleneck_layers`, or bottlenecks of several activations.
    """
    accepted = {description.linear[number].path for number in bottleneck_layers(description)}
    activations = set()
    for path, own in terms.linear.items():
        if isinstance(own.delta, SparseDelta):
            raise InvalidArgument(
                f"the task has a sparse difference at '{path}'; accepted by engine tensorrt are biases, "
                "normalisations, low-rank differences and adapters: build the base with engine torch or openvino"
            )
        if own.delta is not None and len(own.delta.down) > form.rank:
            raise InvalidArgument(f"the rank at '{path}' is {len(own.delta.down)}, the plan accepts up to {form.rank}")
        if own.bottleneck is not None:
            if own.bottleneck.after_norm:
                raise InvalidArgument(
                    f"the bottleneck at '{path}' reads a normalised sum (Pfeiffer); accepted by engine tensorrt are "
                    "bottlenecks on a layer's output: build the base with engine torch or openvino"
                )
            activations.add(own.bottleneck.activation)
            width = len(own.bottleneck.down)
            if path not in accepted:
                raise InvalidArgument(f"'{path}' has a bottleneck; the plan accepts none at this layer")
            if width > form.bottleneck:
                raise InvalidArgument(
                    f"the bottleneck at '{path}' is {width} wide, the plan accepts up to {form.bottleneck}"
                )
    if len(activations) > 1:
        raise InvalidArgument(f"the task's bottlenecks have the activations {sorted(activations)}, accepted is one")


def batch_inputs(
    tasks: Sequence[TorchTask | None],
    ids: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.integer[Any]],
    types: npt.NDArray[np.int32] | None,
    description: Description,
    shared_norms: Numbers,
) -> dict[str, Numbers]:
    """Make the plan's inputs of a batch, except the banks, all int64.

    Args:
        tasks: Task of each row; None is the base alone.
        ids: Token ids [rows, tokens].
        lengths: Number of real tokens [rows].
        types: Token types [rows, tokens], or None.
        description: Layers of the encoder.
        shared_norms: Row numbers of the base's weights and biases, [normalisations, 2].
    """
    layers, adapters = len(description.linear), bottleneck_layers(description)
    rows = len(tasks)
    inputs = {
        "input_ids": ids.astype(np.int64),
        "lengths": np.asarray(lengths, np.int64),
        "norm_rows": np.stack([shared_norms if t is None or t.norms is None else t.norms for t in tasks]),
        "bias_rows": np.zeros((rows, layers), np.int64),
        "low_rank": np.zeros((rows, 3, layers), np.int64),
        "bottleneck": np.zeros((rows, 5, len(adapters)), np.int64),
        "activation": np.zeros(rows, np.int64),
    }
    if types is not None:
        inputs["token_type_ids"] = types.astype(np.int64)
    for row, task in enumerate(tasks):
        if task is None:
            continue
        if task.bias is not None:
            inputs["bias_rows"][row] = task.bias
        if task.low_rank is not None:
            inputs["low_rank"][row] = _tables(task.low_rank)[:3]
        for (_, activation), ranks in task.bottlenecks.items():
            inputs["bottleneck"][row] = _tables(ranks)[:, adapters]
            inputs["activation"][row] = ACTIVATIONS.index(activation)
    return inputs


def _tables(ranks: Ranks) -> Numbers:
    return np.stack([ranks.rank, ranks.down, ranks.up, ranks.gate, ranks.after])
