"""Runs batches of tasks with dense terms by a TensorRT plan whose banks stay on the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from tidal.engines import Artifact, choose_device
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.checks import checked_batch
from tidal.pets.engine.contract import EncoderOutputs, Ids, LoadedTask, no_attention_error, no_hidden_error
from tidal.pets.engine.description import Description
from tidal.pets.tensorrt_engine.form import (
    POOLED,
    DenseForm,
    bank_names,
    batch_inputs,
    check_terms,
    input_shapes,
    read_form,
)
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.pets.torch_engine.pools import RowPools
from tidal.pets.torch_engine.references import TaskReferences
from tidal.pets.torch_engine.tasks import Numbers, TorchTask, load_task
from tidal.pets.torch_engine.weights import put_norms, read_weights
from tidal.tensor_file import Array


class TensorRtPlan(Protocol):
    """A plan with bound banks; see `tidal.engines.Engine`."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch."""


class TensorRtPetsEngine:
    """A frozen encoder that runs rows of any tasks with dense terms in one batch; see `PetsEngine`.

    Tasks are added and removed at any time without a change of the plan: their terms are rows of banks, which are
    inputs of the plan as the batch's row numbers are. Batches run one at a time.

    Args:
        description: Layers of the encoder.
        form: Limits of the plan.
        plan: Runs batches, and reads the banks in the pools' memory.
        pools: Pools with as many rows as the form requires.
        shared_norms: Row numbers of the base's weights and biases, [normalisations, 2].
    """

    def __init__(
        self, description: Description, form: DenseForm, plan: TensorRtPlan, pools: RowPools, shared_norms: Numbers
    ) -> None:
        self.description = description
        self._form = form
        self._plan = plan
        self._pools = pools
        self._shared_norms = shared_norms
        self._held = TaskReferences()
        self._running = threading.Lock()

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> TorchTask:
        """Copy a task's terms into the banks; `cost_key` is not used.

        Raises:
            InvalidArgument: The terms do not fit the encoder, or the plan does not support them.
            Unavailable: A bank is full.
        """
        check_terms(terms, self._form, self.description)
        return load_task(terms, self.description, self._pools, self._shared_norms, torch.device("cpu"))

    def remove(self, task: LoadedTask) -> None:
        """Remove a task; batches that are running with it finish undisturbed."""
        self._held.remove(task)

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> FloatArray:
        """Compute the pooled vectors of a batch; see `PetsEngine.pooled`.

        Raises:
            InvalidArgument: Shapes do not match or exceed the plan's, an id is outside the vocabulary, or a task was
                removed.
        """
        bounded, types = checked_batch(self.description, tasks, ids, lengths, type_ids)
        if len(tasks) > self._form.max_batch or int(lengths.max()) > self._form.max_length:
            raise InvalidArgument(
                f"{len(tasks)} rows of {int(lengths.max())} tokens exceed the plan's {self._form.max_batch} of "
                f"{self._form.max_length}"
            )
        tokens = int(lengths.max())
        bounded, types = bounded[:, :tokens], None if types is None else types[:, :tokens]
        with self._held.using(tasks) as own:
            inputs = batch_inputs(own, bounded, lengths, types, self.description, self._shared_norms)
            with self._running:
                return np.asarray(self._plan.run(inputs)[POOLED], np.float32)

    def run(
        self,
        tasks: Sequence[LoadedTask | None],
        ids: Ids,
        lengths: Ids,
        type_ids: Ids | None = None,
        *,
        all_tokens: bool = False,
        attention: bool = False,
    ) -> EncoderOutputs:
        """Compute pooled vectors, the only output of a plan; see `PetsEngine.run`."""
        if attention:
            raise no_attention_error()
        if all_tokens:
            raise no_hidden_error()
        return EncoderOutputs(self.pooled(tasks, ids, lengths, type_ids), None)


def open_dense_engine(
    folder: Path, open_plan: Callable[[Artifact, Mapping[str, int]], TensorRtPlan], device: torch.device
) -> TensorRtPetsEngine:
    """Open a plan with banks on a device.

    Args:
        folder: Folder with the plan, `dense.json`, `encoder.safetensors` and `encoder.json`.
        open_plan: Opens the plan, given the addresses of its banks by name.
        device: Device of the banks.

    Raises:
        InvalidArgument: The files cannot be read, or do not fit this GPU.
    """
    description, weights = read_weights(folder)
    form, names = read_form(folder), bank_names(description)
    pools = RowPools(list(form.banks), device, rows=form.banks)
    norms = put_norms(pools, description, weights)
    artifact = Artifact("tensorrt", folder / form.plan, "fp32", input_shapes(form, description), "gpu")
    addresses = {names[length]: matrix.data_ptr() for length, matrix in pools.matrices().items()}
    return TensorRtPetsEngine(description, form, open_plan(artifact, addresses), pools, norms)


def open_tensorrt_engine(folder: Path) -> TensorRtPetsEngine:
    """Open a plan that `compile_dense` made on the same kind of GPU.

    Args:
        folder: Folder that the plan was made in.

    Raises:
        InvalidArgument: As `open_dense_engine`.
        Unsupported: TensorRT is not installed, or this torch, which holds the banks, has no GPU.
    """
    choose_device("tensorrt", "gpu")
    from tidal.engines.tensorrt.runtime import open_resident

    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} finds no GPU here: install a CUDA build")
    return open_dense_engine(folder, open_resident, torch.device("cuda"))
