"""The product of sparse differences on a GPU: one kernel for all rows of a batch, each with its own task's matrix.

Matrices are read in the tasks' memory through addresses, so nothing is gathered for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from tidal.pets.torch_engine.operators import Site
from tidal.pets.torch_engine.plan import power_of_two

# Number of tokens and of entries of a matrix's row that one program multiplies at a time.
_MAX_TOKENS = 64
_ENTRIES = 16


# Tables of addresses have any alignment: compile one program for all of them instead of one per alignment.
@triton.jit(do_not_specialize=["starts_of", "columns_of", "values_of"])  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]  # the compiler reads annotations, and does not know Python's types
    starts_of,
    columns_of,
    values_of,
    tokens,
    product,
    inputs,
    outputs,
    length,
    TOKENS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    output, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    position = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    starts = tl.load(starts_of + row).to(tl.pointer_type(tl.int32))
    columns = tl.load(columns_of + row).to(tl.pointer_type(tl.int32))
    values = tl.load(values_of + row).to(tl.pointer_type(tl.float32))
    begin, end = tl.load(starts + output), tl.load(starts + output + 1)
    own = tokens + row * inputs * length
    total = tl.zeros([TOKENS], tl.float32)
    for first in range(begin, end, ENTRIES):
        entry = first + tl.arange(0, ENTRIES)
        column = tl.load(columns + entry, mask=entry < end, other=0)
        value = tl.load(values + entry, mask=entry < end, other=0.0)
        inside = (entry < end)[:, None] & (position < length)[None, :]
        total += tl.sum(
            value[:, None] * tl.load(own + column[:, None] * length + position[None, :], mask=inside, other=0.0), 0
        )
    tl.store(product + (row * outputs + output) * length + position, total, mask=position < length)


class KernelProduct:
    """Computes Δ·x of every row of a group, see `operators.SparseProduct`.

    Args:
        addresses: Addresses of starts, of columns and of values of every row's matrix at every layer, int64
            [layers, rows] each.
    """

    def __init__(self, addresses: Sequence[torch.Tensor]) -> None:
        self._addresses = addresses

    def __call__(self, position: int, site: Site, tokens: torch.Tensor) -> torch.Tensor:
        """Compute [rows, outputs, tokens] from contiguous tokens [rows, inputs, tokens]."""
        rows, inputs, length = tokens.shape
        product = torch.empty(rows, site.outputs, length, device=tokens.device)
        block = min(_MAX_TOKENS, power_of_two(length))
        grid = site.outputs, rows, -(-length // block)
        own = [table[position] for table in self._addresses]
        _multiply[grid](*own, tokens, product, inputs, site.outputs, length, TOKENS=block, ENTRIES=_ENTRIES)
        return product
