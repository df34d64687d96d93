"""LoRA factors of several tasks in shared matrices, so that rows of one pass can have different tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tidal.flover.form import DecoderForm, Projection
from tidal.flover.models.layer import LoraUpdate
from tidal.flover.tasks.adapter import LoraAdapter
from tidal.flover.tasks.layers import projection_sizes
from tidal.flover.tasks.low_rank_update import LowRankUpdate, low_rank_update


class TaskBank:
    """LoRA factors of the most recently used tasks, for the passes of one decoder.

    The factors of a projection are stored in two matrices per layer, rank by rank, one task after the other. Passes
    read them in place.

    Args:
        form: Architecture of the decoder.
        max_tasks: Number of tasks to keep; more only while one pass uses more.
        dtype: Type of the factors and of the rows they are multiplied with.
        device: Device of both.
    """

    def __init__(self, form: DecoderForm, max_tasks: int, dtype: torch.dtype, device: torch.device) -> None:
        self._factors: dict[Projection, _Factors] = {
            projection: _Factors(projection, form.layers, *sizes, max_tasks, dtype, device)
            for projection, sizes in projection_sizes(form).items()
        }

    def update(self, tasks: Sequence[LoraAdapter | None]) -> LoraUpdate | None:
        """Return the low-rank updates of the rows of one pass.

        Args:
            tasks: Task of each row; or a single one for all rows.

        Returns:
            Updates, valid until the next call; None if no row has a task.
        """
        present = dict.fromkeys(task for task in tasks if task is not None)
        if not present:
            return None
        updates = {projection: factors.update(tasks, present) for projection, factors in self._factors.items()}
        return _Updates({projection: each for projection, each in updates.items() if each is not None})


@dataclass(frozen=True, slots=True)
class _Updates:
    """See `LoraUpdate`."""

    projections: Mapping[Projection, LowRankUpdate]

    def __call__(
        self, layer: int, projection: Projection, rows: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        update = self.projections.get(projection)
        return residual if update is None else update.add(layer, rows, residual)


class _Factors:
    """LoRA factors of one projection."""

    def __init__(
        self, projection: Projection, layers: int, inputs: int, outputs: int, max_tasks: int, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._projection, self._max_tasks = projection, max_tasks
        self._down = torch.zeros(layers, 0, inputs, dtype=dtype, device=device)
        self._up = torch.zeros(layers, 0, outputs, dtype=dtype, device=device)
        self._ranks: OrderedDict[LoraAdapter, range] = OrderedDict()  # most recently used last

    def update(self, tasks: Sequence[LoraAdapter | None], present: Mapping[LoraAdapter, None]) -> LowRankUpdate | None:
        """Return the updates of rows with these tasks; `present` holds each task once."""
        changing = [task for task in present if self._projection in task.ranks]
        if not changing:
            return None
        for task in changing:
            self._load(task, present)
        ranks = [None if task is None else self._ranks.get(task) for task in tasks]
        return low_rank_update(ranks, self._down, self._up)

    def _load(self, task: LoraAdapter, present: Mapping[LoraAdapter, None]) -> None:
        """Copy the factors of a task into the matrices, unless they are there; may evict tasks not in `present`."""
        if task in self._ranks:
            self._ranks.move_to_end(task)
            return
        while len(self._ranks) >= self._max_tasks and (oldest := next(iter(self._ranks))) not in present:
            del self._ranks[oldest]
        count = task.ranks[self._projection]
        begin = self._allocate(count)
        if begin + count > self._down.shape[1]:
            self._grow(max(begin + count, 2 * self._down.shape[1]))
        self._ranks[task] = range(begin, begin + count)
        self._down[:, begin : begin + count] = 0
        self._up[:, begin : begin + count] = 0
        for factors in task.factors[self._projection]:
            ranks = slice(begin + factors.rank, begin + factors.rank + len(factors.down))
            outputs = slice(factors.begin, factors.begin + factors.up.shape[1])
            self._down[factors.layer, ranks] = torch.from_numpy(factors.down).to(self._down)
            self._up[factors.layer, ranks, outputs] = torch.from_numpy(factors.up).to(self._up)

    def _allocate(self, count: int) -> int:
        """First of `count` free ranks: the first gap that is large enough, or after all others."""
        begin = 0
        for allocated in sorted(self._ranks.values(), key=lambda ranks: ranks.start):
            if allocated.start - begin >= count:
                break
            begin = allocated.stop
        return begin

    def _grow(self, ranks: int) -> None:
        layers, before, inputs = self._down.shape
        down, up = self._down.new_zeros(layers, ranks, inputs), self._up.new_zeros(layers, ranks, self._up.shape[2])
        down[:, :before], up[:, :before] = self._down, self._up
        self._down, self._up = down, up
