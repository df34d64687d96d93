"""Decoding steps on a GPU as captured CUDA graphs: one launch a step in place of some hundred."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Begin and end of the window, and attended tokens; the addresses of what a step reads and writes follow from them.
_Shape = tuple[int, int, int]
Step = Callable[[int, int, torch.Tensor, torch.Tensor, int], torch.Tensor]

_MOST_GRAPHS = 256


@dataclass(frozen=True, slots=True)
class _Captured:
    """A captured step between tensors that stay where they are."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor
    graph: torch.cuda.CUDAGraph


class StepGraphs:
    """Runs steps, each shape captured when it comes first; the most recently used are kept.

    The graphs share their memory, for only one runs at a time, and its logits are read before the next one runs.

    Args:
        step: `Decoder.step`, with all tensors on the GPU.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: OrderedDict[_Shape, _Captured] = OrderedDict()

    def __call__(
        self, begin: int, end: int, token_ids: torch.Tensor, positions: torch.Tensor, attend: int
    ) -> torch.Tensor:
        """See `Decoder.step`; the logits are good until the next call."""
        shape = begin, end, attend
        captured = self._graphs.pop(shape, None)
        if captured is None:
            captured = self._capture(shape, token_ids, positions)
        self._graphs[shape] = captured
        if len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)
        captured.token_ids.copy_(token_ids)
        captured.positions.copy_(positions)
        captured.graph.replay()
        return captured.logits

    def _capture(self, shape: _Shape, token_ids: torch.Tensor, positions: torch.Tensor) -> _Captured:
        begin, end, attend = shape
        token_ids, positions = token_ids.clone(), positions.clone()
        beside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            # What libraries do at their first call may not be captured. The same step twice writes the same.
            self._step(begin, end, token_ids, positions, attend)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._step(begin, end, token_ids, positions, attend)
        return _Captured(token_ids, positions, logits, graph)
