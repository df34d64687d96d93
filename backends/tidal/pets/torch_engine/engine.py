"""Runs batches whose rows have tasks of their own, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tidal.device import DeviceKind
from tidal.errors import Unsupported
from tidal.pets.engine.checks import checked_batch
from tidal.pets.engine.contract import Attended, Ids, LoadedTask, no_attention_error
from tidal.pets.engine.description import Description
from tidal.pets.policies.streams import TaskOperator
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.plan import make_plan
from tidal.pets.torch_engine.pools import Pools
from tidal.pets.torch_engine.references import TaskReferences
from tidal.pets.torch_engine.runners import CpuRunner, Runner
from tidal.pets.torch_engine.streams import Assign, together
from tidal.pets.torch_engine.tasks import Numbers, TorchTask, load_task, row_lengths
from tidal.pets.torch_engine.weights import as_tensors, put_norms, read_weights


class TorchPetsEngine:
    """A frozen encoder that runs rows of any tasks in one batch.

    Tasks come and go at any time, while batches run too. `pooled` may be called from several threads; batches run one
    at a time.

    Attributes:
        description: of the encoder.
        device: where it runs.
        assign: spreads the operators of a batch, one a task, over parts that run beside each other; on a GPU a part is
            a stream. It may be replaced at any time.
    """

    def __init__(
        self, description: Description, encoder: TorchEncoder, runner: Runner, pools: Pools, shared_norms: Numbers
    ) -> None:
        self.description = description
        self.device: DeviceKind = "gpu" if runner.device.type == "cuda" else "cpu"
        self.assign: Assign = together
        self._encoder = encoder
        self._runner = runner
        self._pools = pools
        self._shared_norms = shared_norms
        self._held = TaskReferences()

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> TorchTask:
        """Copy a task's terms to the device.

        Raises:
            InvalidArgument: the terms do not fit the encoder; says where.
        """
        return load_task(terms, self.description, self._pools, self._shared_norms, self._runner.device, cost_key)

    def remove(self, task: LoadedTask) -> None:
        """Let a task go; batches that run with it end undisturbed, and its memory is freed with the last of them."""
        self._held.remove(task)

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> FloatArray:
        """Pooled vectors [rows, width] of a batch; where a row's task is None, the base's own. See `Engine`."""
        bounded, types = checked_batch(self.description, tasks, ids, lengths, type_ids)
        with self._held.using(tasks) as own:
            plan = make_plan(
                own,
                bounded,
                lengths,
                types,
                parts=self._parts(own, lengths),
                shared_norms=self._shared_norms,
                empty_starts=self._runner.empty_starts,
                longest=self.description.longest,
                steps=self._runner.steps,
            )
            return self._runner.run(self._encoder, plan, self._pools.matrices())

    def attended(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
    ) -> Attended:
        """None: the encoder gives no attention. See `Engine`."""
        raise no_attention_error()

    def _parts(self, tasks: Sequence[TorchTask | None], lengths: Ids) -> list[list[int]]:
        """Rows of every part, those of a task in one."""
        of_task: dict[TorchTask, list[int]] = {}
        for row, task in enumerate(tasks):
            if task is not None:
                of_task.setdefault(task, []).append(row)
        operators = [
            TaskOperator(task.cost_key or "", len(rows), int(lengths[rows].max())) for task, rows in of_task.items()
        ]
        parts: dict[int, list[int]] = {}
        for part, rows in zip(self.assign(operators), of_task.values(), strict=True):
            parts.setdefault(part, []).extend(rows)
        return [sorted(rows) for _, rows in sorted(parts.items())]


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
    description, weights = read_weights(folder, merged)
    runner = _runner(device, threads, description)
    pools = Pools(row_lengths(description), runner.device)
    encoder = TorchEncoder(description, as_tensors(weights), runner.device)
    return TorchPetsEngine(description, encoder, runner, pools, put_norms(pools, description, weights))


def _runner(device: DeviceKind, threads: int, description: Description) -> Runner:
    if device == "cpu":
        torch.set_num_threads(threads)
        return CpuRunner()
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} finds no GPU here: install a CUDA build, or set `device: cpu`")
    from tidal.pets.torch_engine.cuda import CudaRunner

    return CudaRunner(max(spec.outputs for spec in description.linear))
