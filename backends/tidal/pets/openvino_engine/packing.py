"""Padded rows as their tokens one after another, which is what the graph computes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal.pets.engine.contract import Ids

_Int32 = npt.NDArray[np.int32]

# The number of tokens of a batch is padded to a multiple: for each new one, OpenVINO prepares every product again.
_MULTIPLE = 8


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Where the tokens of rows are in a batch.

    Attributes:
        lengths: Number of tokens of each row, int32 [rows]; the last row may be padding, without a task.
        first: Number of each row's first token, int32 [rows].
        positions: Position of each token in its row, int32 [1, tokens].
        real: Whether each token of the padded rows is real, [given rows, padded length].
    """

    lengths: _Int32
    first: _Int32
    positions: _Int32
    real: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, lengths: Ids, padded: int) -> PackedRows:
        """Pack rows.

        Args:
            lengths: Number of real tokens of each row, [rows].
            padded: Length to which the rows are padded.
        """
        padding = -int(lengths.sum()) % _MULTIPLE
        every = np.append(lengths, padding)[: len(lengths) + (padding > 0)].astype(np.int32)
        ends = np.cumsum(every, dtype=np.int32)
        first = ends - every
        positions = np.arange(ends[-1], dtype=np.int32) - np.repeat(first, every)
        return cls(every, first, positions[None], np.arange(padded) < lengths[:, None])

    @property
    def tokens(self) -> int:
        """Number of tokens of the batch, padding included."""
        return self.positions.shape[1]

    def pack(self, values: _Int32) -> _Int32:
        """Values of the real tokens, [1, tokens]; 0 for padding.

        Args:
            values: Padded values, [given rows, padded length].
        """
        packed = np.zeros((1, self.tokens), np.int32)
        real = values[self.real]
        packed[0, : len(real)] = real
        return packed

    def unpack(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Values of tokens, [tokens, ...], as padded rows, [given rows, padded length, ...]; padding is 0.

        Args:
            values: Values of all tokens.
        """
        rows: npt.NDArray[np.float32] = np.zeros((*self.real.shape, *values.shape[1:]), np.float32)
        count: Any = self.real.sum()
        rows[self.real] = values[:count]
        return rows
