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

from tidal.engines.openvino import pins
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
from tidal.pets.engine.description import ATTENTION_RECEIVED, GRAPH_FILE, WORDS, Description, read_description
from tidal.pets.openvino_engine.merging import merge_into
from tidal.pets.openvino_engine.native import core, library, raise_on_failure
from tidal.pets.openvino_engine.packing import PackedRows
from tidal.pets.openvino_engine.tasks import NativeTask, load_task
from tidal.pets.terms import FloatArray, TaskTerms

_HINTS: dict[PetsPrecision, str] = {"fp32": "f32", "bf16": "bf16"}


class OpenVinoLane:
    """Contexts of one compiled form of an encoder; see `PetsEngine.run`.

    Args:
        requests: Requests of the compiled model: as many batches run concurrently.
        description: Layers of the encoder.
        handles: Lock that is held while tasks' handles are read, which no other thread may remove meanwhile; shared by
            all lanes.
    """

    def __init__(self, requests: Sequence[ov.InferRequest], description: Description, handles: threading.Lock) -> None:
        self.description = description
        self._requests: queue.SimpleQueue[ov.InferRequest] = queue.SimpleQueue()
        for request in requests:
            self._requests.put(request)
        self._handles = handles

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
        packed = PackedRows.of(lengths, bounded.shape[1])
        computed = np.arange(packed.tokens, dtype=np.int32) if all_tokens else packed.first
        inputs: dict[str, npt.NDArray[Any]] = {
            "input_ids": packed.pack(bounded),
            "position_ids": packed.positions,
            "computed": computed,
            "first": packed.first if all_tokens else np.arange(len(packed.first), dtype=np.int32),
        }
        if types is not None:
            inputs["token_type_ids"] = packed.pack(types)
        handles = np.zeros(len(packed.first), np.uintp)
        request = self._requests.get()
        try:
            with self._handles:
                handles[: len(tasks)] = [0 if task is None else _native(task).handle for task in tasks]
                batch = library().tidal_batch_begin(len(handles), handles.ctypes.data, packed.lengths.ctypes.data)
            raise_on_failure(batch)
            try:
                inputs["batch"] = np.asarray([batch], np.int32)
                for name, array in inputs.items():
                    # OpenVINO reads the array in place, and does not keep it alive: `inputs` does.
                    request.set_tensor(name, ov.Tensor(array, shared_memory=True))
                request.infer(share_outputs=True)
                pooled = request.get_tensor("pooled").data[: len(tasks)].copy()
                hidden = request.get_tensor("hidden").data[0]
                hidden = packed.unpack(hidden) if all_tokens else hidden[: len(tasks), None].copy()
                received = packed.unpack(request.get_tensor(ATTENTION_RECEIVED).data[0]) if attention else None
            finally:
                library().tidal_batch_end(batch)
        finally:
            self._requests.put(request)
        return EncoderOutputs(pooled, hidden, received)


class OpenVinoPetsEngine:
    """A frozen encoder that runs rows of any tasks in one batch; see `PetsEngine`.

    Tasks can be added and removed at any time, also while batches run. `pooled` may be called from several threads; as
    many batches run concurrently as the engine has contexts. The GIL is released while a batch runs.

    Args:
        description: Layers of the encoder.
        wide: Requests of the form with all threads.
        narrow: Requests of the form with one thread each, one per lane.
        words: Word embeddings, for heads that have no weights of their own; None: there are no such heads.

    Attributes:
        description: Layers of the encoder.
        lanes: The form with all threads, then one lane for each single thread.
    """

    def __init__(
        self,
        description: Description,
        wide: Sequence[ov.InferRequest],
        narrow: Sequence[ov.InferRequest] = (),
        words: FloatArray | None = None,
    ) -> None:
        self.description = description
        self._words = words
        self._handles = threading.Lock()
        forms = [wide, *([request] for request in narrow)]
        self.lanes = tuple(OpenVinoLane(form, description, self._handles) for form in forms)

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> NativeTask:
        """Copy a task's terms into the engine's memory, packed for its kernels; `cost_key` is not used.

        Raises:
            InvalidArgument: The terms do not fit the encoder.
        """
        return load_task(terms, self.description, self._words)

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
        """Compute all outputs of a batch with all threads; see `PetsEngine.run`."""
        return self.lanes[0].run(tasks, ids, lengths, type_ids, all_tokens=all_tokens, attention=attention)


def open_openvino_engine(
    folder: Path,
    *,
    threads: int,
    precision: PetsPrecision = "fp32",
    contexts: int = 1,
    narrow: int = 0,
    merged: TaskTerms | None = None,
) -> OpenVinoPetsEngine:
    """Open an encoder that `export_encoder` wrote for OpenVINO.

    Args:
        folder: Folder with `encoder.xml` and `encoder.json`.
        threads: CPU threads of each context.
        precision: Precision of the shared products; tasks' own terms are always computed in fp32.
        contexts: Number of batches that may run concurrently on `threads` threads each; they share the weights.
        narrow: Number of lanes with one thread each besides these; they share weights with each other, and those that
            are not packed for products with all.
        merged: Task that is merged into the encoder's weights: the engine is then a copy of the encoder for that task
            alone, and runs it with the terms that `unmerged` returns. None: the encoder for all tasks.

    Raises:
        InvalidArgument: The files cannot be read, or `merged` does not fit them.
        NotFound: The library of graph operations is not built.
        Unsupported: This processor does not run the precision, or the graph is of an earlier release.
    """
    description = read_description(folder)
    if not description.packed:
        raise Unsupported(f"{folder} was exported by an earlier release, whose graphs pad: build the model again")
    try:
        graph = core().read_model(folder / GRAPH_FILE)
    except RuntimeError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), "unknown")
        raise InvalidArgument(f"{folder / GRAPH_FILE} is not a readable graph: {reason}") from None
    if merged is not None:
        merge_into(graph, description, merged)
    compiled = _compile(graph, precision, contexts, threads)
    granted = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if granted != _HINTS[precision]:
        raise Unsupported(f"this processor does not run {precision}: OpenVINO uses {granted} instead; accepted is fp32")
    wide = [compiled.create_infer_request() for _ in range(contexts)]
    if not narrow:
        return OpenVinoPetsEngine(description, wide, words=_words(graph))
    singles = _compile(graph, precision, narrow, 1)
    return OpenVinoPetsEngine(
        description, wide, [singles.create_infer_request() for _ in range(narrow)], words=_words(graph)
    )


def _words(graph: ov.Model) -> FloatArray | None:
    """The word embeddings of a graph: the pages of its file that they are mapped from, not a copy."""
    found = (node for node in graph.get_ops() if node.get_friendly_name() == WORDS)
    return next((np.asarray(node.data) for node in found if node.get_type_name() == "Constant"), None)


def _compile(graph: ov.Model, precision: PetsPrecision, streams: int, threads: int) -> ov.CompiledModel:
    """Compile a graph for concurrent batches on some threads each; streams share the packed weights."""
    return core().compile_model(
        graph,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": streams * threads,
            "ENABLE_CPU_PINNING": pins(threads),
        },
    )


def _native(task: LoadedTask) -> NativeTask:
    if not isinstance(task, NativeTask):
        raise foreign_task_error(task)
    return task
