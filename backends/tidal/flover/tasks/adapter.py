"""A task's differences as passes need them: by product of the common layout rather than by linear layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidal.flover.models.form import Product
from tidal.flover.tasks.layers import Place
from tidal.tasks.low_rank import LowRankDelta
from tidal.tasks.stored import FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A low-rank difference of some neighbouring outputs of a product.

    Attributes:
        layer: number of the decoder's layer.
        rank: of the product's difference at which this one's begin.
        begin: first of the outputs.
        down: [ranks, inputs].
        up: [ranks, outputs], times its scale.
    """

    layer: int
    rank: int
    begin: int
    down: FloatArray
    up: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class Adapter:
    """What a task adds to the products of a decoder; one of its kind, whatever it holds.

    Attributes:
        parts: by product, those of all layers.
        ranks: by product, the most that a layer has; products without any are left out.
    """

    parts: Mapping[Product, tuple[Part, ...]]
    ranks: Mapping[Product, int]


def adapter_of(deltas: Mapping[str, LowRankDelta], places: Mapping[str, Place]) -> Adapter:
    """The adapter of differences by the path of their linear layers.

    Linear layers that share a product (queries, keys and values) become ranks of one difference, each of which changes
    its own outputs.
    """
    parts: dict[Product, list[Part]] = defaultdict(list)
    ranks: dict[Product, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for path, delta in deltas.items():
        place = places[path]
        up = delta.up if place.order is None else delta.up[place.order]
        of_layer = ranks[place.product]
        parts[place.product].append(
            Part(
                place.layer,
                of_layer[place.layer],
                place.begin,
                delta.down,
                np.ascontiguousarray(up.T * np.float32(delta.scale)),
            )
        )
        of_layer[place.layer] += len(delta.down)
    return Adapter(
        {product: tuple(found) for product, found in parts.items()},
        {product: max(found.values()) for product, found in ranks.items()},
    )
