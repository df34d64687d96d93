"""Decode steps on a GPU as captured CUDA graphs: one launch per step instead of some hundred."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Begin and end of the window, and attended tokens: they determine all addresses that a step reads and writes.
_Shape = tuple[int, int, int]
DecodeStep = Callable[[int, int, torch.Tensor, torch.Tensor, int], torch.Tensor]

_MAX_GRAPHS = 256


@dataclass(frozen=True, slots=True)
class _Captured:
    """A captured step, with the tensors of its input and output."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor
    graph: torch.cuda.CUDAGraph


class DecodeGraphs:
    """Captures each shape of decode steps on its first use, and keeps the most recently used graphs.

    The graphs share their memory: only one runs at a time, and its logits are read before the next one runs.

    Args:
        decode: `DecoderModel.decode`, with all tensors on the GPU.
    """

    def __init__(self, decode: DecodeStep) -> None:
        self._decode = decode
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: OrderedDict[_Shape, _Captured] = OrderedDict()

    def __call__(
        self, begin: int, end: int, token_ids: torch.Tensor, positions: torch.Tensor, attend: int
    ) -> torch.Tensor:
        """See `DecoderModel.decode`; the logits are valid until the next call."""
        shape = begin, end, attend
        captured = self._graphs.pop(shape, None)
        if captured is None:
            captured = self._capture(shape, token_ids, positions)
        self._graphs[shape] = captured
        if len(self._graphs) > _MAX_GRAPHS:
            self._graphs.popitem(last=False)
        captured.token_ids.copy_(token_ids)
        captured.positions.copy_(positions)
        captured.graph.replay()
        return captured.logits

    def _capture(self, shape: _Shape, token_ids: torch.Tensor, positions: torch.Tensor) -> _Captured:
        begin, end, attend = shape
        token_ids, positions = token_ids.clone(), positions.clone()
        side_stream: torch.cuda.Stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            # First calls of libraries must not be captured. Running the same step twice writes the same values.
            self._decode(begin, end, token_ids, positions, attend)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._decode(begin, end, token_ids, positions, attend)
        return _Captured(token_ids, positions, logits, graph)
