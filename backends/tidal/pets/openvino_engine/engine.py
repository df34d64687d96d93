"""The OpenVINO engine of PetS: runs batches on a CPU in which every row has a task of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.checks import checked_batch
from tidal.pets.engine.contract import (
    EncoderOutputs,
    Ids,
    LoadedTask,
    PetsPrecision,
    foreign_task_error,
    no_attention_error,
    no_hidden_error,
)
from tidal.pets.engine.description import ATTENTION_RECEIVED, GRAPH_FILE, Description, read_description
from tidal.pets.openvino_engine.merging import merge_into
from tidal.pets.openvino_engine.native import core, library, raise_on_failure
from tidal.pets.openvino_engine.tasks import NativeTask, load_task
from tidal.pets.terms import FloatArray, TaskTerms

_HINTS: dict[PetsPrecision, str] = {"fp32": "f32", "bf16": "bf16"}


class OpenVinoPetsEngine:
    """A frozen encoder that runs rows of any tasks in one batch; see `PetsEngine`.

    Tasks can be added and removed at any time, also while batches run. `pooled` may be called from several threads; as
    many batches run concurrently as the engine has contexts. The GIL is released while a batch runs.
    """

    def __init__(self, compiled: ov.CompiledModel, description: Description, contexts: int) -> None:
        self.description = description
        self._requests: queue.SimpleQueue[ov.InferRequest] = queue.SimpleQueue()
        for _ in range(contexts):
            self._requests.put(compiled.create_infer_request())
        # Locked while handles are read: no other thread may remove a task in between.
        self._handles = threading.Lock()

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> NativeTask:
        """Copy a task's terms into the engine's memory, packed for its kernels; `cost_key` is not used.

        Raises:
            InvalidArgument: The terms do not fit the encoder.
        """
        return load_task(terms, self.description)

    def remove(self, task: LoadedTask) -> None:
        """Remove a task; its memory is freed when the last batch that runs with it finishes."""
        with self._handles:
            _native(task).release()

    def pooled(
        self,
        tasks: Sequence[LoadedTask | None],
        ids: Ids,
        lengths: Ids,
        type_ids: Ids | None = None,
    ) -> FloatArray:
        """Compute the pooled vectors of a batch; see `PetsEngine.pooled`."""
        return self.run(tasks, ids, lengths, type_ids).pooled

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
        """Compute all outputs of a batch; see `PetsEngine.run`."""
        if attention and not self.description.attention:
            raise no_attention_error()
        if all_tokens and not self.description.hidden:
            raise no_hidden_error()
        bounded, types = checked_batch(self.description, tasks, ids, lengths, type_ids)
        inputs: dict[str, npt.NDArray[Any]] = {"input_ids": bounded}
        if types is not None:
            inputs["token_type_ids"] = types
        if self.description.hidden:
            inputs["kept"] = np.asarray([bounded.shape[1] if all_tokens else 1], np.int32)
        handles = np.empty(len(tasks), np.uintp)
        counts = np.ascontiguousarray(lengths, np.int32)
        request = self._requests.get()
        try:
            with self._handles:
                handles[:] = [0 if task is None else _native(task).handle for task in tasks]
                batch = library().tidal_batch_begin(len(tasks), handles.ctypes.data, counts.ctypes.data)
            raise_on_failure(batch)
            try:
                inputs["batch"] = np.asarray([batch], np.int32)
                for name, array in inputs.items():
                    # OpenVINO reads the array in place, and does not keep it alive: `inputs` does.
                    request.set_tensor(name, ov.Tensor(array, shared_memory=True))
                request.infer(share_outputs=True)
                wanted = {"pooled": True, "hidden": self.description.hidden, ATTENTION_RECEIVED: attention}
                found: dict[str, FloatArray] = {
                    name: request.get_tensor(name).data.copy() for name, wants in wanted.items() if wants
                }
            finally:
                library().tidal_batch_end(batch)
        finally:
            self._requests.put(request)
        return EncoderOutputs(found["pooled"], found.get("hidden"), found.get(ATTENTION_RECEIVED))


def open_openvino_engine(
    folder: Path,
    *,
    threads: int,
    precision: PetsPrecision = "fp32",
    contexts: int = 1,
    merged: TaskTerms | None = None,
) -> OpenVinoPetsEngine:
    """Open an encoder that `export_encoder` wrote for OpenVINO.

    Args:
        folder: Folder with `encoder.xml` and `encoder.json`.
        threads: CPU threads of each context.
        precision: Precision of the shared products; tasks' own terms are always computed in fp32.
        contexts: Number of batches that may run concurrently; contexts share the weights.
        merged: Task that is merged into the encoder's weights: the engine is then a copy of the encoder for that task
            alone, and runs it with the terms that `unmerged` returns. None: the encoder for all tasks.

    Raises:
        InvalidArgument: The files cannot be read, or `merged` does not fit them.
        NotFound: The library of graph operations is not built.
        Unsupported: This processor does not run the precision.
    """
    description = read_description(folder)
    try:
        graph = core().read_model(folder / GRAPH_FILE)
    except RuntimeError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), "unknown")
        raise InvalidArgument(f"{folder / GRAPH_FILE} is not a readable graph: {reason}") from None
    if merged is not None:
        merge_into(graph, description, merged)
    compiled = core().compile_model(
        graph,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "PERFORMANCE_HINT": "LATENCY" if contexts == 1 else "THROUGHPUT",
            "NUM_STREAMS": contexts,
            "INFERENCE_NUM_THREADS": contexts * threads,
            # Two compiled models in one process would be pinned to the same cores.
            "ENABLE_CPU_PINNING": False,
        },
    )
    granted = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if granted != _HINTS[precision]:
        raise Unsupported(f"this processor does not run {precision}: OpenVINO uses {granted} instead; accepted is fp32")
    return OpenVinoPetsEngine(compiled, description, contexts)


def _native(task: LoadedTask) -> NativeTask:
    if not isinstance(task, NativeTask):
        raise foreign_task_error(task)
    return task
