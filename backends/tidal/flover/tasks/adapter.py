"""LoRA factors of a task, by fused projection of the common layout instead of by linear layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidal.flover.form import Projection
from tidal.flover.tasks.layers import LayerSlice
from tidal.tasks.low_rank import LowRankDelta
from tidal.tasks.stored import FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class LoraFactors:
    """LoRA factors of a contiguous range of outputs of a projection.

    Attributes:
        layer: Index of the decoder's layer.
        rank: Index of the first of these ranks among the projection's ranks.
        begin: Index of the first output in the projection.
        down: First factor, [ranks, inputs].
        up: Second factor times the scale, [ranks, outputs].
    """

    layer: int
    rank: int
    begin: int
    down: FloatArray
    up: FloatArray


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class LoraAdapter:
    """Low-rank updates of a task; compared by identity.

    Attributes:
        factors: Factors by projection, those of all layers.
        ranks: Largest rank of a layer by projection, without projections that the task does not change.
    """

    factors: Mapping[Projection, tuple[LoraFactors, ...]]
    ranks: Mapping[Projection, int]


def lora_adapter(deltas: Mapping[str, LowRankDelta], slices: Mapping[str, LayerSlice]) -> LoraAdapter:
    """Arrange low-rank updates of linear layers by projection.

    Linear layers that share a projection (queries, keys and values) become separate ranks of it, each of which changes
    its own outputs.

    Args:
        deltas: Low-rank updates by the path of the linear layer.
        slices: Slice of each linear layer, see `layer_slices`.
    """
    factors: dict[Projection, list[LoraFactors]] = defaultdict(list)
    ranks: dict[Projection, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for path, delta in deltas.items():
        part = slices[path]
        up = delta.up if part.order is None else delta.up[part.order]
        of_layer = ranks[part.projection]
        factors[part.projection].append(
            LoraFactors(
                part.layer,
                of_layer[part.layer],
                part.begin,
                delta.down,
                np.ascontiguousarray(up.T * np.float32(delta.scale)),
            )
        )
        of_layer[part.layer] += len(delta.down)
    return LoraAdapter(
        {projection: tuple(each) for projection, each in factors.items()},
        {projection: max(of_layers.values()) for projection, of_layers in ranks.items()},
    )
