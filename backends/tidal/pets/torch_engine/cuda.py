"""Batches on a GPU: parts on streams of their own, and captured graphs of layouts that recur."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from tidal.pets.engine.contract import EncoderOutputs
from tidal.pets.torch_engine.bound import bind
from tidal.pets.torch_engine.encoder import TorchEncoder
from tidal.pets.torch_engine.operators import Matrices, SparseProduct
from tidal.pets.torch_engine.plan import ROUNDED, TorchBatchPlan
from tidal.pets.torch_engine.sparse_kernel import KernelProduct

_Value = TypeVar("_Value")

# Largest number of graphs, and of layouts that are remembered until they recur.
_MAX_GRAPHS = 64
_MAX_SEEN = 1024


class StreamLanes:
    """Runs parts concurrently: the first on the current stream, each other one on a stream of its own."""

    def __init__(self) -> None:
        self._streams: list[torch.cuda.Stream] = []

    def run(self, works: Mapping[int, Callable[[], None]]) -> None:
        """Run work after what is queued on the current stream; what follows there waits for all of it."""
        current = torch.cuda.current_stream()
        first, *others = works.values()
        while len(self._streams) < len(others):
            self._streams.append(torch.cuda.Stream())
        used = self._streams[: len(others)]
        for stream, work in zip(used, others, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                work()
        first()
        for stream in used:
            current.wait_stream(stream)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A captured pass between tensors at fixed addresses."""

    pinned: torch.Tensor
    numbers: torch.Tensor
    outputs: tuple[torch.Tensor, ...]
    graph: torch.cuda.CUDAGraph


class GraphCache:
    """Captured passes by layout: the first pass of a layout runs uncaptured, the second one is captured.

    The graphs share their memory: one runs at a time, and its result is read before the next one runs.
    """

    def __init__(self, stream: torch.cuda.Stream, device: torch.device) -> None:
        self._stream, self._device = stream, device
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    def run(
        self, key: Hashable, numbers: torch.Tensor, compute: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, ...]:
        """Run a pass on the current stream, which must be the cache's.

        Args:
            key: Equal for passes that do the same with other numbers, in the same memory.
            numbers: Numbers of the pass on the host, int64.
            compute: The pass as a function of the numbers on the device.

        Returns:
            Results of the pass, valid until the next one.
        """
        captured = self._graphs.get(key)
        if captured is None:
            if key not in self._seen:
                _remember(self._seen, key, None, _MAX_SEEN)
                return compute(numbers.pin_memory().to(self._device, non_blocking=True))
            captured = self._capture(numbers, compute)
        _remember(self._graphs, key, captured, _MAX_GRAPHS)
        captured.numbers.copy_(captured.pinned.copy_(numbers), non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, numbers: torch.Tensor, compute: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> _Captured:
        pinned = numbers.clone().pin_memory()
        placed = pinned.to(self._device, non_blocking=True)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may add tasks meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = compute(placed)
        return _Captured(pinned, placed, outputs, graph)


class CudaRunner:
    """Runs batches on the GPU, see `runners.Runner`.

    Args:
        outputs: Largest number of outputs of a linear layer.
    """

    def __init__(self, outputs: int) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.steps = ROUNDED
        self._starts = torch.zeros(outputs + 1, dtype=torch.int32, device=self.device)
        torch.cuda.current_stream().synchronize()
        self.empty_starts = self._starts.data_ptr()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()
        self._lanes = StreamLanes()
        self._graphs = GraphCache(self._stream, self.device)
        self._running = threading.Lock()

    def run(self, encoder: TorchEncoder, plan: TorchBatchPlan, matrices: Matrices) -> EncoderOutputs:
        """Run a batch and wait for the GPU without the GIL."""

        def compute(numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
            batch = bind(plan.layout, numbers, matrices, _product, self._lanes)
            return encoder(batch, all_tokens=plan.layout.all_tokens)

        # A graph reads the pools' matrices at fixed addresses: a matrix that grew needs another graph.
        key = plan.layout, tuple(matrix.data_ptr() for matrix in matrices.values())
        with self._running, torch.inference_mode(), torch.cuda.stream(self._stream):
            outputs = self._graphs.run(key, torch.from_numpy(plan.numbers), compute)
            pooled, hidden = [each.to("cpu", non_blocking=True) for each in outputs]
            self._stream.synchronize()
        return EncoderOutputs(np.array(pooled.numpy()), np.array(hidden.numpy()))


def _product(_part: int, addresses: Sequence[torch.Tensor]) -> SparseProduct:
    return KernelProduct(addresses)


def _remember(known: OrderedDict[Hashable, _Value], key: Hashable, value: _Value, most: int) -> None:
    """Store a value as the newest of at most `most` values."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
