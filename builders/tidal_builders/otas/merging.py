"""Merging similar tokens: bipartite soft matching on the attention's keys (OTAS §II-C, §III-B; ToMe §3)."""

from __future__ import annotations

import torch
from torch.nn import functional


def merge_tokens(
    tokens: torch.Tensor, sizes: torch.Tensor, keys: torch.Tensor, count: int, prefix: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge `count` patches of each image into those most similar to them.

    Every other patch is one that may leave; each has the most similar of the rest as its target, and the `count` that
    are most similar to theirs are averaged into it, weighted by the patches that each stands for.

    Args:
        tokens: [images, tokens, width].
        sizes: patches that each token stands for, [images, tokens, 1].
        keys: what similarity is measured on, [images, tokens, any width]; by cosine.
        count: at most half of the patches; the same for every image.
        prefix: tokens at the front that take no part: class token and registers.

    Returns:
        Tokens and sizes with `count` tokens less: the prefix, the patches that may leave but stay, the other half.
    """
    body = functional.normalize(keys[:, prefix:], dim=-1)
    similarity = body[:, ::2] @ body[:, 1::2].transpose(1, 2)
    best, target = similarity.max(dim=-1)
    # All of them in order, rather than the first `count`: it gives those that stay as well.
    order = best.topk(best.shape[1], dim=-1).indices
    leaving, staying = order[:, :count], order[:, count:]

    # Sums and sizes move together, as one tensor.
    sums = torch.cat([tokens * sizes, sizes], dim=-1)
    columns = sums.shape[-1]
    front, sources, others = sums[:, :prefix], sums[:, prefix::2], sums[:, prefix + 1 :: 2]
    into = target.gather(1, leaving)
    others = others.scatter_add(1, _wide(into, columns), sources.gather(1, _wide(leaving, columns)))
    sums = torch.cat([front, sources.gather(1, _wide(staying, columns)), others], dim=1)
    merged_sizes = sums[..., -1:]
    return sums[..., :-1] / merged_sizes, merged_sizes


def _wide(places: torch.Tensor, columns: int) -> torch.Tensor:
    """Places of tokens, [images, n], for every column of them: [images, n, columns]."""
    return places.unsqueeze(-1).expand(-1, -1, columns)
