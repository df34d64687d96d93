"""The torch engine of PetS: runs batches in which every row has a task of its own, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tidal.device import DeviceKind
from tidal.errors import Unsupported
from tidal.pets.engine.checks import checked_batch
from tidal.pets.engine.contract import EncoderOutputs, Ids, LoadedTask, no_attention_error
from tidal.pets.engine.description import WORDS, Description
from tidal.pets.policies.streams import TaskOperator
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.plan import make_plan
from tidal.pets.torch_engine.pools import RowPools
from tidal.pets.torch_engine.references import TaskReferences
from tidal.pets.torch_engine.runners import CpuRunner, Runner
from tidal.pets.torch_engine.streams import Assign, together
from tidal.pets.torch_engine.tasks import Numbers, TorchTask, load_task, row_lengths
from tidal.pets.torch_engine.weights import as_tensors, put_norms, read_weights


class TorchPetsEngine:
    """A frozen encoder that runs rows of any tasks in one batch; see `PetsEngine`.

    Tasks can be added and removed at any time, also while batches run. `pooled` may be called from several threads;
    batches run one at a time.

    Attributes:
        description: Layers of the encoder.
        device: Kind of device that runs the encoder.
        assign: Spreads the operators of a batch, one per task, over parts that run concurrently; on a GPU a part is a
            stream. It may be replaced at any time.
    """

    def __init__(
        self,
        description: Description,
        encoder: TorchEncoder,
        runner: Runner,
        pools: RowPools,
        shared_norms: Numbers,
        words: FloatArray | None = None,
    ) -> None:
        self.description = description
        self.device: DeviceKind = "gpu" if runner.device.type == "cuda" else "cpu"
        self.assign: Assign = together
        self._encoder = encoder
        self._runner = runner
        self._pools = pools
        self._shared_norms = shared_norms
        self._words = words  # for heads that have no weights of their own
        self._held = TaskReferences()

    def add(self, terms: TaskTerms, *, cost_key: str | None = None) -> TorchTask:
        """Copy a task's terms to the device; see `PetsEngine.add`.

        Raises:
            InvalidArgument: The terms do not fit the encoder.
        """
        return load_task(
            terms,
            self.description,
            self._pools,
            self._shared_norms,
            self._runner.device,
            cost_key,
            words=self._words,
        )

    def remove(self, task: LoadedTask) -> None:
        """Remove a task; its memory is freed when the last batch that runs with it finishes."""
        self._held.remove(task)

    def pooled(
        self, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, type_ids: Ids | None = None
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
        """Compute all outputs of a batch, except attention; see `PetsEngine.run`."""
        if attention:
            raise no_attention_error()
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
                all_tokens=all_tokens,
            )
            return self._runner.run(self._encoder, plan, self._pools.matrices())

    def _parts(self, tasks: Sequence[TorchTask | None], lengths: Ids) -> list[list[int]]:
        """Rows of every part; all rows of a task are in one part."""
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
    """Open an encoder that `export_encoder` wrote for torch. Everything is computed in float32.

    Args:
        folder: Folder with `encoder.safetensors` and `encoder.json`.
        threads: CPU threads; torch has one number of threads for the whole process.
        device: Device that runs the encoder.
        merged: Task that is merged into the encoder's weights: the engine is then a copy of the encoder for that task
            alone, and runs it with the terms that `unmerged` returns. None: the encoder for all tasks.

    Raises:
        InvalidArgument: The files cannot be read, or `merged` does not fit them.
        Unsupported: This torch has no GPU.
    """
    description, weights = read_weights(folder, merged)
    runner = _runner(device, threads, description)
    pools = RowPools(row_lengths(description), runner.device)
    encoder = TorchEncoder(description, as_tensors(weights), runner.device)
    norms = put_norms(pools, description, weights)
    return TorchPetsEngine(description, encoder, runner, pools, norms, weights[WORDS])


def _runner(device: DeviceKind, threads: int, description: Description) -> Runner:
    if device == "cpu":
        torch.set_num_threads(threads)
        return CpuRunner()
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} finds no GPU here: install a CUDA build, or set `device: cpu`")
    from tidal.pets.torch_engine.cuda import CudaRunner

    return CudaRunner(max(spec.outputs for spec in description.linear))
