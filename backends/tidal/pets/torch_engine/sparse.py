"""Sparse differences of many tasks in one product: every row's own Δ times the row's tokens."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tidal.pets.engine.description import Description
from tidal.pets.terms import SparseDelta

# torch warns once per process, when the first such tensor is made.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([]), torch.tensor([]), (1, 1), check_invariants=False)


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A task's sparse differences on the device: compressed rows [outputs, inputs], one layer after another.

    Attributes:
        starts: int32, outputs + 1 values per layer with a difference, each from 0.
        columns: int32 [entries].
        values: float32 [entries].
        spans: Per layer, where its starts and its entries begin, and the number of entries, [layers, 3]; starts begin
            at -1 for layers without a difference.
    """

    starts: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor
    spans: npt.NDArray[np.int64]

    @property
    def bytes(self) -> int:
        """Memory on the device in bytes."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    def pointers(self, empty_starts: int) -> npt.NDArray[np.int64]:
        """Addresses of every layer's starts, columns and values, [layers, 3].

        Args:
            empty_starts: Address of starts that are all 0, for layers without a difference.
        """
        begins = np.array([self.starts.data_ptr(), self.columns.data_ptr(), self.values.data_ptr()])
        found: npt.NDArray[np.int64] = begins + 4 * self.spans[:, [0, 1, 1]]
        found[self.spans[:, 0] < 0, 0] = empty_starts
        return found


def pack_sparse(layers: Mapping[int, SparseDelta], description: Description, device: torch.device) -> SparseRows:
    """Copy sparse differences to the device.

    Args:
        layers: Differences by the number of their layer.
        description: Layers of the encoder.
        device: Device that gets them.
    """
    spans = np.zeros((len(description.linear), 3), np.int64)
    spans[:, 0] = -1
    starts = entries = 0
    for layer in sorted(layers):
        spans[layer] = starts, entries, len(layers[layer].values)
        starts += len(layers[layer].starts)
        entries += len(layers[layer].values)
    ordered = [layers[layer] for layer in sorted(layers)]
    return SparseRows(
        _copied([delta.starts.astype(np.int32) for delta in ordered], device),
        _copied([delta.columns.astype(np.int32) for delta in ordered], device),
        _copied([delta.values for delta in ordered], device),
        spans,
    )


class BlockDiagonal:
    """The sparse differences of a batch's rows, for one product per layer; on a CPU.

    Args:
        tasks: Differences of each row; None adds nothing.
    """

    def __init__(self, tasks: Sequence[SparseRows | None]) -> None:
        distinct = {id(task): task for task in tasks if task is not None}
        begins = np.zeros((len(distinct) + 1, 2), np.int64)
        for number, task in enumerate(distinct.values(), 1):
            begins[number] = begins[number - 1] + (len(task.starts), len(task.columns))
        offsets = {key: begins[number] for number, key in enumerate(distinct)}
        empty_starts = np.zeros_like(next(iter(distinct.values())).spans)
        empty_starts[:, 0] = -1
        # [rows, layers]: where a row's starts and entries begin in the arrays of all tasks, and how many there are.
        spans = np.stack([empty_starts if task is None else task.spans for task in tasks])
        moved = np.array([(0, 0) if task is None else offsets[id(task)] for task in tasks])
        self._counts = spans[..., 2]
        self._entries = spans[..., 1] + moved[:, None, 1]
        self._starts = np.where(spans[..., 0] < 0, -1, spans[..., 0] + moved[:, None, 0])
        self._all_starts = torch.cat([task.starts for task in distinct.values()]).numpy()
        self._all_columns = torch.cat([task.columns for task in distinct.values()])
        self._all_values = torch.cat([task.values for task in distinct.values()])

    def product(self, layer: int, outputs: int, tokens: torch.Tensor) -> torch.Tensor:
        """Compute Δ·x of every row at a layer, as one product with a matrix that has the differences on its diagonal.

        Args:
            layer: Number of the layer.
            outputs: Number of the layer's outputs.
            tokens: Inputs of the rows, contiguous, [rows, inputs, tokens].

        Returns:
            [rows, outputs, tokens].
        """
        rows, inputs, length = tokens.shape
        counts, starts = self._counts[:, layer], self._starts[:, layer]
        before = np.cumsum(counts) - counts
        pointers = np.zeros(rows * outputs + 1, np.int32)
        own = self._all_starts[np.maximum(starts, 0)[:, None] + np.arange(1, outputs + 1)]
        pointers[1:] = (np.where(starts[:, None] < 0, 0, own) + before[:, None]).reshape(-1)
        positions = torch.from_numpy(np.repeat(self._entries[:, layer] - before, counts) + np.arange(counts.sum()))
        moved = torch.from_numpy(np.repeat((np.arange(rows) * inputs).astype(np.int32), counts))
        blocks = torch.sparse_csr_tensor(
            torch.from_numpy(pointers),
            self._all_columns[positions] + moved,
            self._all_values[positions],
            (rows * outputs, rows * inputs),
            check_invariants=False,
        )
        return (blocks @ tokens.reshape(rows * inputs, length)).view(rows, outputs, length)


def _copied(arrays: Sequence[npt.NDArray[np.generic]], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays)).to(device)
