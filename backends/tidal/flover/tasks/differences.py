"""What rows add to a product that they share, each with its own ranks of two factors."""

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

# Tasks whose factors lie within so many ranks are multiplied together. With fewer of them calls cost more than they
# save, with more the products of rows with others' ranks do: measured on one core, with 16 and 64 rows of 768.
_MOST_RANKS = 32


class Difference(Protocol):
    """What the rows of one pass add to one product, in each layer."""

    def add(self, layer: int, rows: torch.Tensor, onto: torch.Tensor | None) -> torch.Tensor:
        """Of rows [rows, inputs]: [rows, outputs], on top of `onto` of that shape."""


def difference(ranks: Sequence[range | None], down: torch.Tensor, up: torch.Tensor) -> Difference:
    """The difference of rows that have these ranks.

    Args:
        ranks: of each row, None where it has none; or one, which all rows have. Those of two tasks do not overlap.
        down: [layers, ranks, inputs].
        up: [layers, ranks, outputs].
    """
    own = sorted({each for each in ranks if each is not None}, key=lambda each: each.start)
    if len(own) == 1 and None not in ranks:
        return _Whole(down[:, own[0].start : own[0].stop], up[:, own[0].start : own[0].stop])
    if (library := usable(down.device)) is not None:
        return _Own(ranks, down, up, library)
    return _Blocks(tuple(_block(ranks, members, down, up) for members in _neighbours(own)))


@dataclass(frozen=True, slots=True)
class _Whole:
    """All rows have the same ranks, and these are all there are."""

    down: torch.Tensor
    up: torch.Tensor

    def add(self, layer: int, rows: torch.Tensor, onto: torch.Tensor | None) -> torch.Tensor:
        between, up = functional.linear(rows, self.down[layer]), self.up[layer]
        return between @ up if onto is None else torch.addmm(onto, between, up)


class _Own:
    """Through the library of kernels: every row is multiplied with its own ranks alone."""

    def __init__(
        self, ranks: Sequence[range | None], down: torch.Tensor, up: torch.Tensor, library: ctypes.CDLL
    ) -> None:
        self._down, self._up, self._run = down, up, library.tidal_low_rank
        # To stay where they are while the kernels read them.
        self._places: tuple[npt.NDArray[np.int64], ...] = (
            np.array([0 if each is None else each.start for each in ranks], np.int64),
            np.array([0 if each is None else each.stop for each in ranks], np.int64),
        )

    def add(self, layer: int, rows: torch.Tensor, onto: torch.Tensor | None) -> torch.Tensor:
        rows, onto = rows.contiguous(), None if onto is None else onto.contiguous()
        down, up = self._down[layer], self._up[layer]
        found = torch.empty(len(rows), up.shape[1])
        self._run(
            *(torch.get_num_threads(), len(rows), down.shape[1], up.shape[1], rows.data_ptr()),
            *(each.ctypes.data for each in self._places),
            *(down.data_ptr(), up.data_ptr(), None if onto is None else onto.data_ptr(), found.data_ptr()),
        )
        return found


@dataclass(frozen=True, slots=True)
class _Block:
    """Neighbouring tasks.

    Attributes:
        rows: that have them, [rows] int64; None: all of the pass.
        foreign: which ranks are not of a row's own task, [rows, ranks]; None: none is.
        down: [layers, ranks, inputs].
        up: [layers, ranks, outputs].
    """

    rows: torch.Tensor | None
    foreign: torch.Tensor | None
    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Blocks:
    """In torch: the rows of a block are multiplied with all its ranks, and what is of other tasks is set to zero."""

    blocks: Sequence[_Block]

    def add(self, layer: int, rows: torch.Tensor, onto: torch.Tensor | None) -> torch.Tensor:
        found = rows.new_zeros(len(rows), self.blocks[0].up.shape[2]) if onto is None else onto.clone()
        for block in self.blocks:
            between = functional.linear(rows if block.rows is None else rows[block.rows], block.down[layer])
            if block.foreign is not None:
                # Filled rather than multiplied: what overflows with another task's values is no number times zero.
                between.masked_fill_(block.foreign, 0.0)
            if block.rows is None:
                found.addmm_(between, block.up[layer])
            else:
                found.index_add_(0, block.rows, between @ block.up[layer])
        return found


def _neighbours(own: Sequence[range]) -> list[list[range]]:
    """Ranks in lists that lie within so many; larger ones by themselves."""
    found: list[list[range]] = []
    for each in own:
        if not found or each.stop - found[-1][0].start > _MOST_RANKS:
            found.append([])
        found[-1].append(each)
    return found


def _block(ranks: Sequence[range | None], members: Sequence[range], down: torch.Tensor, up: torch.Tensor) -> _Block:
    begin, end = members[0].start, members[-1].stop
    rows = {row: each for row, each in enumerate(ranks) if each is not None and each in members}
    foreign = None
    if len(members) > 1:
        mask = np.ones((len(rows), end - begin), np.bool_)
        for place, each in enumerate(rows.values()):
            mask[place, each.start - begin : each.stop - begin] = False
        foreign = torch.from_numpy(mask).to(down.device)
    places = None if len(rows) == len(ranks) else torch.tensor(list(rows), device=down.device)
    return _Block(places, foreign, down[:, begin:end], up[:, begin:end])
