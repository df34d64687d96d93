"""Runs batches whose rows have tasks of their own, in torch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from tidal.device import DeviceKind
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.base import REMOVED, LoadedTask, not_of_this_engine
from tidal.pets.engine.checks import Ids, fitted, fitted_batch
from tidal.pets.engine.description import WEIGHTS_FILE, Description, read_description
from tidal.pets.engine.merging import dense
from tidal.pets.policies.streams import Operator
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.plan import make_plan
from tidal.pets.torch_engine.pools import Pools
from tidal.pets.torch_engine.runners import CpuRunner, Runner
from tidal.pets.torch_engine.streams import Assign, together
from tidal.pets.torch_engine.tasks import TorchTask, held_lengths, load_task
from tidal.tensor_file import Array, parse_tensors


class TorchPetsEngine:
    """A frozen encoder that runs rows of any tasks in one batch.

    Tasks come and go at any time, while batches run too. `run` may be called from several threads; batches run one at a
    time.

    Attributes:
        description: of the encoder.
        assign: spreads the operators of a batch, one a task, over parts that run beside each other; on a GPU a part is
            a stream. It may be replaced at any time.
    """

    def __init__(
        self, description: Description, encoder: TorchEncoder, runner: Runner, pools: Pools, shared_norms: Array
    ) -> None:
        self.description = description
        self.assign: Assign = together
        self._runner = runner
        self._pools = pools
        self._shared_norms = shared_norms
        self._encoder = encoder
        # Batches that run with a task, and those that were removed meanwhile.
        self._used: Counter[TorchTask] = Counter()
        self._leaving: set[TorchTask] = set()
        self._changing = threading.Lock()

    def add(self, terms: TaskTerms) -> TorchTask:
        """Copy a task's terms to the device.

        Raises:
            InvalidArgument: the terms do not fit the encoder; says where.
        """
        return load_task(terms, self.description, self._pools, self._shared_norms, self._runner.device)

    def remove(self, task: LoadedTask) -> None:
        """Let a task go; batches that run with it end undisturbed, and its memory is freed with the last of them."""
        own = _own(task)
        with self._changing:
            self._leaving.add(own)
            self._free([own])

    def run(self, tasks: Sequence[LoadedTask], ids: Ids, lengths: Ids, type_ids: Ids | None = None) -> list[FloatArray]:
        """Answer a batch: for every row the logits of its task, [classes].

        Args:
            tasks: of every row.
            ids: [rows, tokens] token ids, padded at the end of a row with any id.
            lengths: [rows] real tokens of every row, at least 1.
            type_ids: [rows, tokens] token types; zeros when absent.

        Raises:
            InvalidArgument: shapes differ, an id is none of the vocabulary, or a task was removed.
        """
        pooled = self.pooled(tasks, ids, lengths, type_ids)
        return [task.head.weight @ vector + task.head.bias for task, vector in zip(tasks, pooled, strict=True)]

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> FloatArray:
        """Pooled vectors [rows, width] of a batch; where a row's task is None, the base's own. See `run`."""
        bounded, types = fitted_batch(self.description, tasks, ids, lengths, type_ids)
        own = [None if task is None else _own(task) for task in tasks]
        with self._using(own):
            plan = make_plan(
                own,
                bounded,
                lengths,
                types,
                parts=self._parts(own, lengths),
                shared_norms=self._shared_norms,
                nothing=self._runner.nothing,
                longest=self.description.longest,
                steps=self._runner.steps,
            )
            return self._runner.run(self._encoder, plan, self._pools.matrices())

    def _parts(self, tasks: Sequence[TorchTask | None], lengths: Ids) -> list[list[int]]:
        """Rows of every part, those of a task in one."""
        of_task: dict[TorchTask, list[int]] = {}
        for row, task in enumerate(tasks):
            if task is not None:
                of_task.setdefault(task, []).append(row)
        operators = [Operator(task.kind, len(rows), int(lengths[rows].max())) for task, rows in of_task.items()]
        parts: dict[int, list[int]] = {}
        for part, rows in zip(self.assign(operators), of_task.values(), strict=True):
            parts.setdefault(part, []).extend(rows)
        return [sorted(rows) for _, rows in sorted(parts.items())]

    @contextmanager
    def _using(self, tasks: Sequence[TorchTask | None]) -> Iterator[None]:
        distinct = {task for task in tasks if task is not None}
        with self._changing:
            if any(task.removed or task in self._leaving for task in distinct):
                raise InvalidArgument(REMOVED)
            self._used.update(distinct)
        try:
            yield
        finally:
            with self._changing:
                self._used.subtract(distinct)
                for task in distinct:
                    if self._used[task] == 0:
                        del self._used[task]
                self._free(distinct & self._leaving)

    def _free(self, tasks: Iterable[TorchTask]) -> None:
        for task in tasks:
            if task not in self._used:
                self._leaving.discard(task)
                task.release()


def open_torch_engine(
    folder: Path, *, threads: int, device: DeviceKind = "cpu", merged: TaskTerms | None = None
) -> TorchPetsEngine:
    """Open an encoder that `export_encoder` wrote for torch. All is computed in float32.

    Args:
        folder: with `encoder.safetensors` and `encoder.json`.
        threads: on a CPU; torch has one number of threads for the whole process.
        device: where it runs.
        merged: a task whose differences and normalisations become part of this engine's own weights: the engine is
            a copy of the encoder for that task alone. It is run with what `unmerged` leaves.

    Raises:
        InvalidArgument: the files cannot be read, or `merged` does not fit them.
        Unsupported: this torch finds no GPU.
    """
    description = read_description(folder)
    path = folder / WEIGHTS_FILE
    try:
        arrays = parse_tensors(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    if description.form is None:
        raise InvalidArgument(f"{folder} holds no encoder for torch: it has no form")
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    if merged is not None:
        _merge(weights, description, fitted(merged, description))
    runner = _runner(device, threads, description)
    pools = Pools(held_lengths(description), runner.device)
    norms = [
        [pools.put(place.width, weights[name][None]) for name in (place.weight, place.bias)]
        for place in description.norm
    ]
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    encoder = TorchEncoder(description, tensors, runner.device)
    return TorchPetsEngine(description, encoder, runner, pools, np.array(norms, np.int64))


def _runner(device: DeviceKind, threads: int, description: Description) -> Runner:
    if device == "cpu":
        torch.set_num_threads(threads)
        return CpuRunner()
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} finds no GPU here: install a CUDA build, or set `device: cpu`")
    from tidal.pets.torch_engine.cuda import CudaRunner

    return CudaRunner(max(place.outputs for place in description.linear))


def _merge(weights: dict[str, Array], description: Description, terms: TaskTerms) -> None:
    for place in description.linear:
        own = terms.linear.get(place.path)
        rows = slice(place.first, place.first + place.outputs)
        if own is not None and own.delta is not None:
            weights[place.weight][rows] += dense(own.delta, (place.outputs, place.inputs))
        if own is not None and own.bias is not None:
            weights[place.bias][rows] += own.bias
    for norm in description.norm:
        affine = terms.norm.get(norm.path)
        if affine is not None:
            weights[norm.weight], weights[norm.bias] = affine.weight.copy(), affine.bias.copy()


def _own(task: LoadedTask) -> TorchTask:
    if not isinstance(task, TorchTask):
        raise not_of_this_engine(task)
    return task
