"""Low-rank updates of one projection, each row with its own ranks of two shared factors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tidal.flover.native.library import usable

# Neighbouring tasks within this many ranks are multiplied together. Fewer ranks cost more calls, more ranks cost more
# products of rows with ranks of other tasks: measured on one core, with 16 and 64 rows of 768.
_MAX_BLOCK_RANKS = 32


class LowRankUpdate(Protocol):
    """Updates of the rows of one pass to the output of one projection."""

    def add(self, layer: int, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the update of rows [rows, inputs] in a layer plus `residual`, both [rows, outputs]."""


def low_rank_update(ranks: Sequence[range | None], down: torch.Tensor, up: torch.Tensor) -> LowRankUpdate:
    """Return the updates of rows with these ranks.

    Args:
        ranks: Ranks of each row, None for no update; or a single range for all rows. Ranges of tasks do not overlap.
        down: First factor, [layers, ranks, inputs].
        up: Second factor, [layers, ranks, outputs].
    """
    own = sorted({each for each in ranks if each is not None}, key=lambda each: each.start)
    if len(own) == 1 and None not in ranks:
        return _SharedRanks(down[:, own[0].start : own[0].stop], up[:, own[0].start : own[0].stop])
    if (library := usable(down.device)) is not None:
        return _NativeUpdate(ranks, down, up, library)
    return _Blocks(tuple(_block(ranks, members, down, up) for members in _neighbours(own)))


@dataclass(frozen=True, slots=True)
class _SharedRanks:
    """All rows have the same ranks, which are all of the factors."""

    down: torch.Tensor
    up: torch.Tensor

    def add(self, layer: int, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        between, up = functional.linear(rows, self.down[layer]), self.up[layer]
        return between @ up if residual is None else torch.addmm(residual, between, up)


class _NativeUpdate:
    """Updates by the native library: every row is multiplied with its own ranks only."""

    def __init__(
        self, ranks: Sequence[range | None], down: torch.Tensor, up: torch.Tensor, library: ctypes.CDLL
    ) -> None:
        self._down, self._up, self._run = down, up, library.tidal_low_rank
        # Attributes, so that they live while the kernels read them.
        self._ranges: tuple[npt.NDArray[np.int64], ...] = (
            np.array([0 if each is None else each.start for each in ranks], np.int64),
            np.array([0 if each is None else each.stop for each in ranks], np.int64),
        )

    def add(self, layer: int, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        rows, residual = rows.contiguous(), None if residual is None else residual.contiguous()
        down, up = self._down[layer], self._up[layer]
        result = torch.empty(len(rows), up.shape[1])
        self._run(
            *(torch.get_num_threads(), len(rows), down.shape[1], up.shape[1], rows.data_ptr()),
            *(each.ctypes.data for each in self._ranges),
            *(down.data_ptr(), up.data_ptr(), None if residual is None else residual.data_ptr(), result.data_ptr()),
        )
        return result


@dataclass(frozen=True, slots=True)
class _Block:
    """Neighbouring tasks that are multiplied together.

    Attributes:
        rows: Indices of the rows with these tasks, [rows] int64; None: all rows.
        foreign: Mask of the ranks that are not of a row's own task, [rows, ranks]; None: a single task.
        down: First factor, [layers, ranks, inputs].
        up: Second factor, [layers, ranks, outputs].
    """

    rows: torch.Tensor | None
    foreign: torch.Tensor | None
    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Updates by torch: rows are multiplied with all ranks of their block, and ranks of other tasks are set to 0."""

    blocks: Sequence[_Block]

    def add(self, layer: int, rows: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        result = rows.new_zeros(len(rows), self.blocks[0].up.shape[2]) if residual is None else residual.clone()
        for block in self.blocks:
            between = functional.linear(rows if block.rows is None else rows[block.rows], block.down[layer])
            if block.foreign is not None:
                # Filled instead of multiplied: an overflow with another task's values times 0 would be NaN.
                between.masked_fill_(block.foreign, 0.0)
            if block.rows is None:
                result.addmm_(between, block.up[layer])
            else:
                result.index_add_(0, block.rows, between @ block.up[layer])
        return result


def _neighbours(own: Sequence[range]) -> list[list[range]]:
    """Group ranges that are within `_MAX_BLOCK_RANKS` ranks; a larger range is a group of its own."""
    groups: list[list[range]] = []
    for each in own:
        if not groups or each.stop - groups[-1][0].start > _MAX_BLOCK_RANKS:
            groups.append([])
        groups[-1].append(each)
    return groups


def _block(ranks: Sequence[range | None], members: Sequence[range], down: torch.Tensor, up: torch.Tensor) -> _Block:
    begin, end = members[0].start, members[-1].stop
    rows = {row: each for row, each in enumerate(ranks) if each is not None and each in members}
    foreign = None
    if len(members) > 1:
        mask = np.ones((len(rows), end - begin), np.bool_)
        for index, each in enumerate(rows.values()):
            mask[index, each.start - begin : each.stop - begin] = False
        foreign = torch.from_numpy(mask).to(down.device)
    indices = None if len(rows) == len(ranks) else torch.tensor(list(rows), device=down.device)
    return _Block(indices, foreign, down[:, begin:end], up[:, begin:end])
