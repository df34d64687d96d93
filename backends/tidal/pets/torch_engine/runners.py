"""Runs a planned batch: here on a CPU, in `cuda` on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from tidal.pets.engine.contract import EncoderOutputs
from tidal.pets.torch_engine.bound import SequentialLanes, bind
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.operators import Matrices, SparseProduct
from tidal.pets.torch_engine.plan import EXACT, Steps, TorchBatchPlan
from tidal.pets.torch_engine.sparse import BlockDiagonal


class Runner(Protocol):
    """Runs batches, one at a time, on one device.

    Attributes:
        device: Device of all tensors.
        steps: Multiples to which sizes of batches are rounded up.
        empty_starts: Address of sparse starts that are all 0.
    """

    device: torch.device
    steps: Steps
    empty_starts: int

    def run(self, encoder: TorchEncoder, plan: TorchBatchPlan, matrices: Matrices) -> EncoderOutputs:
        """Run a batch without the GIL."""


class CpuRunner:
    """Runs batches on a CPU, one part after another."""

    device = torch.device("cpu")
    empty_starts = 0

    def __init__(self, steps: Steps = EXACT) -> None:
        self.steps = steps
        self._running = threading.Lock()

    def run(self, encoder: TorchEncoder, plan: TorchBatchPlan, matrices: Matrices) -> EncoderOutputs:
        """See `Runner`."""

        def make_product(part: int, _addresses: Sequence[torch.Tensor]) -> SparseProduct:
            blocks = BlockDiagonal(plan.sparse[part])
            return lambda _place, site, tokens: blocks.product(site.number, site.outputs, tokens)

        with self._running, torch.inference_mode():
            batch = bind(plan.layout, torch.from_numpy(plan.numbers), matrices, make_product, SequentialLanes())
            pooled, hidden = encoder(batch, all_tokens=plan.layout.all_tokens)
            return EncoderOutputs(np.array(pooled.numpy()), np.array(hidden.numpy()))
