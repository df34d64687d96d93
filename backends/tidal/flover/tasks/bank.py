"""The tasks of a pass's rows, each of which adds its own differences to the products that all of them share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tidal.flover.models.form import DecoderForm, Product
from tidal.flover.models.layer import Adding
from tidal.flover.tasks.adapter import Adapter
from tidal.flover.tasks.differences import Difference, difference
from tidal.flover.tasks.layers import product_sizes


class TaskBank:
    """Factors of the tasks that were used last, ready to be multiplied; for the passes of one decoder.

    A product's factors lie in two matrices a layer, rank by rank, one task's behind the other's. Passes read them where
    they lie.

    Args:
        form: of the decoder.
        most: tasks that stay ready; more only while one pass has more.
        dtype: of factors and of the rows that they are multiplied with.
        device: of both.
    """

    def __init__(self, form: DecoderForm, most: int, dtype: torch.dtype, device: torch.device) -> None:
        self._factors: dict[Product, _Factors] = {
            product: _Factors(product, form.layers, *sizes, most, dtype, device)
            for product, sizes in product_sizes(form).items()
        }

    def adding(self, tasks: Sequence[Adapter | None]) -> Adding | None:
        """What the rows of one pass add to its products.

        Args:
            tasks: of each row; or one, which all rows have.

        Returns:
            Good until the next call; None where no row has a task.
        """
        present = dict.fromkeys(task for task in tasks if task is not None)
        if not present:
            return None
        found = {product: factors.of(tasks, present) for product, factors in self._factors.items()}
        return _Differences({product: each for product, each in found.items() if each is not None})


@dataclass(frozen=True, slots=True)
class _Differences:
    """See `Adding`."""

    products: Mapping[Product, Difference]

    def __call__(
        self, layer: int, product: Product, rows: torch.Tensor, onto: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        found = self.products.get(product)
        return onto if found is None else found.add(layer, rows, onto)


class _Factors:
    """Those of one product."""

    def __init__(
        self, product: Product, layers: int, inputs: int, outputs: int, most: int, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._product, self._most = product, most
        self._down = torch.zeros(layers, 0, inputs, dtype=dtype, device=device)
        self._up = torch.zeros(layers, 0, outputs, dtype=dtype, device=device)
        self._ranks: OrderedDict[Adapter, range] = OrderedDict()  # those used last at the end

    def of(self, tasks: Sequence[Adapter | None], present: Mapping[Adapter, None]) -> Difference | None:
        """What rows with these tasks add; `present` are the tasks, each once."""
        here = [task for task in present if self._product in task.ranks]
        if not here:
            return None
        for task in here:
            self._have(task, present)
        ranks = [None if task is None else self._ranks.get(task) for task in tasks]
        return difference(ranks, self._down, self._up)

    def _have(self, task: Adapter, present: Mapping[Adapter, None]) -> None:
        """Have a task's factors ready."""
        if task in self._ranks:
            self._ranks.move_to_end(task)
            return
        while len(self._ranks) >= self._most and (oldest := next(iter(self._ranks))) not in present:
            del self._ranks[oldest]
        count = task.ranks[self._product]
        begin = self._gap(count)
        if begin + count > self._down.shape[1]:
            self._grow(max(begin + count, 2 * self._down.shape[1]))
        self._ranks[task] = range(begin, begin + count)
        self._down[:, begin : begin + count] = 0
        self._up[:, begin : begin + count] = 0
        for part in task.parts[self._product]:
            at = slice(begin + part.rank, begin + part.rank + len(part.down))
            outputs = slice(part.begin, part.begin + part.up.shape[1])
            self._down[part.layer, at] = torch.from_numpy(part.down).to(self._down)
            self._up[part.layer, at, outputs] = torch.from_numpy(part.up).to(self._up)

    def _gap(self, count: int) -> int:
        """The first place for so many ranks between those that are taken, or behind them."""
        begin = 0
        for taken in sorted(self._ranks.values(), key=lambda taken: taken.start):
            if taken.start - begin >= count:
                break
            begin = taken.stop
        return begin

    def _grow(self, ranks: int) -> None:
        layers, before, inputs = self._down.shape
        down, up = self._down.new_zeros(layers, ranks, inputs), self._up.new_zeros(layers, ranks, self._up.shape[2])
        down[:, :before], up[:, :before] = self._down, self._up
        self._down, self._up = down, up
