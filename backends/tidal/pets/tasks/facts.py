"""Figures about what a task changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidal.pets.terms import BaseLayers, LowRankDelta, SparseDelta, TaskTerms


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """How much of each type of terms a task has.

    Attributes:
        biases: Number of linear layers with another bias.
        normalisations: Number of changed normalisations.
        sparse_layers: Number of linear layers with a sparse difference.
        sparse_values: Number of values of all sparse differences.
        density: The same as a share of all linear weights of the base.
        low_rank_layers: Number of linear layers with a low-rank difference.
        ranks: Distinct ranks of low-rank differences, ascending.
        adapters: Number of linear layers that an adapter follows.
        widths: Distinct widths of bottlenecks, ascending.
        memory_share: Memory of the task as a share of the memory of the base's layers.
    """

    biases: int
    normalisations: int
    sparse_layers: int
    sparse_values: int
    density: float
    low_rank_layers: int
    ranks: tuple[int, ...]
    adapters: int
    widths: tuple[int, ...]
    memory_share: float

    def sentence(self) -> str:
        """Describe what the task changes, for people."""
        parts = [
            (self.sparse_layers, f"sparse differences of {self.density:.2%} of the weights"),
            (self.low_rank_layers, f"low-rank differences (rank {_listed(self.ranks)})"),
            (self.adapters, f"adapters (width {_listed(self.widths)})"),
            (self.biases, "biases"),
        ]
        changes = [f"{what} in {layers} layer{'s' if layers > 1 else ''}" for layers, what in parts if layers]
        if self.normalisations:
            changes.append(f"{self.normalisations} normalisation{'s' if self.normalisations > 1 else ''}")
        return "; ".join(changes) or "nothing but the classifier"


def facts_of(terms: TaskTerms, base: BaseLayers) -> TaskFacts:
    """Count what a task changes.

    Args:
        terms: Terms of the task.
        base: Layers of the base.
    """
    linear = terms.linear.values()
    sparse = [change.delta for change in linear if isinstance(change.delta, SparseDelta)]
    low_rank = [change.delta for change in linear if isinstance(change.delta, LowRankDelta)]
    adapters = [change.bottleneck for change in linear if change.bottleneck is not None]
    values = sum(len(delta.values) for delta in sparse)
    return TaskFacts(
        biases=sum(change.bias is not None for change in linear),
        normalisations=len(terms.norm),
        sparse_layers=len(sparse),
        sparse_values=values,
        density=values / sum(layer.weight.size for layer in base.linear.values()),
        low_rank_layers=len(low_rank),
        ranks=_distinct(len(delta.down) for delta in low_rank),
        adapters=len(adapters),
        widths=_distinct(len(adapter.down) for adapter in adapters),
        memory_share=terms.bytes / sum(layer.weight.nbytes + layer.bias.nbytes for layer in base.linear.values()),
    )


def _distinct(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(sizes)))


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
