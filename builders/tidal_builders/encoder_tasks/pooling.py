"""Pooling as sentence-transformers defines it: the vectors of tokens become one, whatever the padding after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

# Pool token vectors [rows, length, width] with a mask [rows, length] of the same type to [rows, width].
Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _cls(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return vectors[:, 0]


def _max(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return vectors.masked_fill(mask[:, :, None] == 0, torch.finfo(vectors.dtype).min).amax(1)


def _mean(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _weighted(vectors, mask)


def _mean_sqrt_len(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (vectors * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9).sqrt()


def _weighted_mean(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _weighted(vectors, mask * (_positions(mask) + 1))


def _last_token(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    positions = _positions(mask)
    last = (positions * mask).amax(1, keepdim=True)
    return (vectors * (positions == last).to(vectors.dtype)[:, :, None]).sum(1)


def _weighted(vectors: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (vectors * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1e-9)


def _positions(mask: torch.Tensor) -> torch.Tensor:
    """Number of each token from 0, [1, length], of the mask's type."""
    return torch.arange(mask.shape[1], device=mask.device)[None].to(mask.dtype)


POOLS: Mapping[str, Pool] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}


class Pooling(torch.nn.Module):
    """Pools in float32: the sum of many tokens loses digits in lower precisions.

    Args:
        modes: Names of `POOLS`, whose results are concatenated.
    """

    def __init__(self, modes: Sequence[str]) -> None:
        super().__init__()
        self.pools = [POOLS[mode] for mode in modes]

    def forward(self, vectors: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return float32 [rows, width].

        Args:
            vectors: Vectors of tokens [rows, length, width].
            attention_mask: 0 or 1, [rows, length].
        """
        mask = attention_mask.float()
        # Not by multiplication alone, which keeps NaN.
        vectors = vectors.float().masked_fill(mask[:, :, None] == 0, 0.0)
        return torch.cat([pool(vectors, mask) for pool in self.pools], 1)
