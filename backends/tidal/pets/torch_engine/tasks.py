"""Tasks as the engine gathers them: row numbers in the pools, and sparse differences of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from tidal.pets.engine.checks import checked_terms
from tidal.pets.engine.contract import LoadedTask
from tidal.pets.engine.description import Description
from tidal.pets.terms import Activation, Bottleneck, FloatArray, Head, LowRankDelta, SparseDelta, TaskTerms
from tidal.pets.torch_engine.pools import ZERO_ROW, RowPools
from tidal.pets.torch_engine.sparse import SparseRows, pack_sparse

Numbers = npt.NDArray[np.int64]
# Length of the rows of bottlenecks' inner biases.
SCALAR = 1


@dataclass(frozen=True, slots=True)
class Ranks:
    """Low-rank differences, or bottlenecks of one activation, at all linear layers.

    All arrays are int64 [layers]; `rank` is 0 at layers without one. Only bottlenecks have an inner bias, one row of
    one number per unit (`gate`), and an outer one (`after`).

    Attributes:
        rank: Rank, or width of the bottleneck.
        down: First row number in the pool of the layer's inputs; for bottlenecks of its outputs.
        up: First row number in the pool of the layer's outputs.
        gate: First row number of the inner bias.
        after: Row number of the outer bias.
    """

    rank: Numbers
    down: Numbers
    up: Numbers
    gate: Numbers
    after: Numbers

    @classmethod
    def none(cls, layers: int) -> Ranks:
        """Make tables without any rank."""
        return cls(*np.full((5, layers), ZERO_ROW, np.int64))


class TorchTask(LoadedTask):
    """A task on the engine's device.

    Attributes:
        cost_key: Name under which a profile lists what its operators cost; None: in none.
        bias: Row numbers of biases, int64 [layers], or None.
        norms: Row numbers of weights and biases of normalisations, int64 [normalisations, 2], the base's where the task
            has none; or None.
        low_rank: Low-rank differences, or None.
        bottlenecks: Bottlenecks by whether they read normalised sums, and by activation.
        sparse: Sparse differences, or None.
    """

    __slots__ = ("_held", "_pools", "bias", "bottlenecks", "cost_key", "low_rank", "norms", "sparse")

    def __init__(
        self, head: Head, cost_key: str | None, pools: RowPools, held: list[tuple[int, int, int]], extra: int
    ) -> None:
        self._pools = pools
        self._held: list[tuple[int, int, int]] | None = held
        super().__init__(head, extra + sum(4 * length * count for length, _, count in held))
        self.cost_key = cost_key
        self.bias: Numbers | None = None
        self.norms: Numbers | None = None
        self.low_rank: Ranks | None = None
        self.bottlenecks: dict[tuple[bool, Activation], Ranks] = {}
        self.sparse: SparseRows | None = None

    @property
    def removed(self) -> bool:
        """Whether its memory was freed."""
        return self._held is None

    def release(self) -> None:
        """Free the memory, which no batch may read any more; further calls do nothing."""
        held, self._held = self._held, None
        self.sparse = None
        for length, first, count in held or ():
            self._pools.free(length, first, count)

    def __del__(self) -> None:
        self.release()


@dataclass
class _Rows:
    """Rows of a task that are to be stored, and the tables that get their row numbers."""

    rows: dict[int, list[FloatArray]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    wanted: list[tuple[Numbers, int, int, int]] = field(default_factory=list)

    def add(self, table: Numbers, position: int, rows: FloatArray) -> None:
        """Add rows [count, length]; the number of the first is written to `table[position]`."""
        count, length = rows.shape
        before = self.counts.get(length, 0)
        self.rows.setdefault(length, []).append(rows)
        self.counts[length] = before + count
        self.wanted.append((table, position, length, before))

    def put(self, pools: RowPools) -> list[tuple[int, int, int]]:
        """Store all rows and fill the tables; returns length, first row and number of rows of each range."""
        first: dict[int, int] = {}
        try:
            for length, rows in self.rows.items():
                first[length] = pools.put(length, np.concatenate(rows))
        except BaseException:
            for length, held in first.items():
                pools.free(length, held, self.counts[length])
            raise
        for table, position, length, before in self.wanted:
            table[position] = first[length] + before
        return [(length, first[length], count) for length, count in self.counts.items()]


def load_task(
    terms: TaskTerms,
    description: Description,
    pools: RowPools,
    shared_norms: Numbers,
    device: torch.device,
    cost_key: str | None = None,
    *,
    words: FloatArray | None = None,
) -> TorchTask:
    """Check a task's terms against the encoder's layers and copy them to the device.

    Args:
        terms: Terms of the task.
        description: Layers of the encoder.
        pools: Pools that store the dense terms.
        shared_norms: Row numbers of the base's own weights and biases, [normalisations, 2].
        device: Device that stores the sparse terms.
        cost_key: Name under which a profile lists what the task's operators cost; None: in none.
        words: Word embeddings of the encoder, for heads that have no weights of their own.

    Raises:
        InvalidArgument: A layer is unknown, or an array has another shape, type or content than the layer accepts.
    """
    terms = checked_terms(terms, description)
    layers = {spec.path: number for number, spec in enumerate(description.linear)}
    rows = _Rows()
    bias = np.full(len(layers), ZERO_ROW, np.int64)
    low_rank = Ranks.none(len(layers))
    bottlenecks: dict[tuple[bool, Activation], Ranks] = {}
    sparse: dict[int, SparseDelta] = {}
    for path, own in terms.linear.items():
        layer = layers[path]
        if own.bias is not None:
            rows.add(bias, layer, own.bias[None])
        match own.delta:
            case SparseDelta():
                sparse[layer] = own.delta
            case LowRankDelta(down, up, scale) if len(down):
                low_rank.rank[layer] = len(down)
                rows.add(low_rank.down, layer, down)
                rows.add(low_rank.up, layer, np.float32(scale) * up.T)
        if own.bottleneck is not None:
            key = own.bottleneck.after_norm, own.bottleneck.activation
            found = bottlenecks.setdefault(key, Ranks.none(len(layers)))
            _add_bottleneck(rows, found, layer, own.bottleneck)
    norms = _add_norms(rows, terms, description, shared_norms)
    packed = pack_sparse(sparse, description, device) if sparse else None
    task = TorchTask(terms.head.loaded(words), cost_key, pools, rows.put(pools), packed.bytes if packed else 0)
    task.bias = bias if bias.any() else None
    task.norms = norms
    task.low_rank = low_rank if low_rank.rank.any() else None
    task.bottlenecks = bottlenecks
    task.sparse = packed
    return task


def _add_bottleneck(rows: _Rows, found: Ranks, layer: int, own: Bottleneck) -> None:
    # A bottleneck of width 0 is its outer bias alone: it gets a rank of 1, of zeros.
    rank = max(1, len(own.down))
    found.rank[layer] = rank
    padded = [(0, rank - len(own.down)), (0, 0)]
    rows.add(found.down, layer, np.pad(own.down, padded))
    rows.add(found.up, layer, np.pad(own.up.T, padded))
    rows.add(found.gate, layer, np.pad(own.down_bias[:, None], padded))
    rows.add(found.after, layer, own.up_bias[None])


def _add_norms(rows: _Rows, terms: TaskTerms, description: Description, shared: Numbers) -> Numbers | None:
    if not terms.norm:
        return None
    norms = shared.copy()
    for spec, row in zip(description.norm, norms, strict=True):
        own = terms.norm.get(spec.path)
        if own is not None:
            rows.add(row, 0, own.weight[None])
            rows.add(row, 1, own.bias[None])
    return norms


def row_lengths(description: Description) -> list[int]:
    """Lengths of the rows that the terms of an encoder's tasks have."""
    linear = [size for spec in description.linear for size in (spec.outputs, spec.inputs)]
    return [SCALAR, *linear, *(spec.width for spec in description.norm)]
