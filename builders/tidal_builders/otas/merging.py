"""Merge similar tokens by bipartite soft matching on the keys of attention (OTAS §II-C, §III-B; ToMe §3)."""

from __future__ import annotations

import torch
from torch.nn import functional


def merge_tokens(
    tokens: torch.Tensor, sizes: torch.Tensor, keys: torch.Tensor, count: int, prefix: int, *, scatter: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge `count` patches of each image into the patches that are most similar to them.

    Every second patch is a source; its target is the most similar one of the other half. The `count` sources with the
    highest similarity are averaged into their targets, weighted by the number of patches that each token represents.

    Args:
        tokens: Tokens, of shape [images, tokens, width].
        sizes: Number of patches that each token represents, of shape [images, tokens, 1].
        keys: Keys for the cosine similarity, of shape [images, tokens, any width].
        count: Number of patches to merge in each image, at most half of them.
        prefix: Number of tokens at the front that are never merged: class token and registers.
        scatter: Whether sources are added to their targets by scattering, which is the fastest on a CPU, or by a
            product with one row per target: a scattered sum is a plugin in TensorRT.

    Returns:
        Tokens and sizes with `count` fewer tokens: the prefix, the sources that were not merged, and the targets.
    """
    body = functional.normalize(keys[:, prefix:], dim=-1)
    similarity = body[:, ::2] @ body[:, 1::2].transpose(1, 2)
    best, target = similarity.max(dim=-1)
    # All sources in order, rather than the first `count`, because those that are kept are needed as well.
    order = best.topk(best.shape[1], dim=-1).indices
    merged, kept = order[:, :count], order[:, count:]

    # Sums and sizes are merged together, as one tensor.
    sums = torch.cat([tokens * sizes, sizes], dim=-1)
    columns = sums.shape[-1]
    front, sources, others = sums[:, :prefix], sums[:, prefix::2], sums[:, prefix + 1 :: 2]
    targets = target.gather(1, merged)
    additions = sources.gather(1, _expand(merged, columns))
    if scatter:
        others = others.scatter_add(1, _expand(targets, columns), additions)
    else:
        rows = torch.arange(others.shape[1], device=targets.device).view(1, -1, 1)
        others = others + (targets.unsqueeze(1) == rows).to(sums.dtype) @ additions
    sums = torch.cat([front, sources.gather(1, _expand(kept, columns)), others], dim=1)
    merged_sizes = sums[..., -1:]
    return sums[..., :-1] / merged_sizes, merged_sizes


def _expand(places: torch.Tensor, columns: int) -> torch.Tensor:
    """Expand indices of tokens [images, n] to all columns [images, n, columns]."""
    return places.unsqueeze(-1).expand(-1, -1, columns)
