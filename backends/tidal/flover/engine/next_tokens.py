"""The next tokens of a pass, chosen where its logits are: on a GPU only token ids are copied to the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tidal.flover.sampling import UNDEFINED, FloatArray, IntArray, Sampler, sample_tokens

_LEAST_TEMPERATURE = 1e-30


def next_tokens(logits: torch.Tensor, samplers: Sequence[Sampler]) -> IntArray:
    """Return the next token of every row.

    Rows with penalties, biases, a grammar or a least number of tokens are copied to the host, and sampled there.

    Args:
        logits: Logits on any device, float32 [rows, vocabulary].
        samplers: Sampler of each row.

    Returns:
        Token ids, [rows] int64, see `sample_tokens`.
    """
    if on_host(logits):
        return sample_tokens(logits.numpy(), samplers)
    tokens = np.empty(len(samplers), np.int64)
    adjusted = [row for row, each in enumerate(samplers) if each.adjusts]
    plain = [row for row, each in enumerate(samplers) if not each.adjusts]
    if plain:
        tokens[plain] = sample_on_device(some_rows(logits, plain), [samplers[row] for row in plain])
    if adjusted:
        tokens[adjusted] = sample_tokens(rows_on_host(logits, adjusted), [samplers[row] for row in adjusted])
    return tokens


def on_host(logits: torch.Tensor) -> bool:
    """Whether logits are in the host's memory."""
    return logits.device.type == "cpu"


def rows_on_host(logits: torch.Tensor, rows: Sequence[int]) -> FloatArray:
    """Return some rows of logits in the host's memory, as a copy unless they are all and there already."""
    found: FloatArray = some_rows(logits, rows).cpu().numpy()
    return found


def some_rows(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return some rows of logits where they are; without a copy if they are all of them in order.

    Args:
        logits: Logits on any device, float32 [rows, vocabulary].
        rows: Indices of the rows to return.
    """
    if len(rows) == len(logits) and all(row == index for index, row in enumerate(rows)):
        return logits
    if on_host(logits):  # not by torch, whose threads take milliseconds to start beside those of the kernels
        return torch.from_numpy(logits.numpy()[list(rows)])
    return logits[torch.tensor(rows, device=logits.device)]


def sample_on_device(logits: torch.Tensor, samplers: Sequence[Sampler]) -> IntArray:
    """Return the next token of every row, computed on the device of the logits, all rows together.

    The distribution is that of `sample_tokens`. A row draws one random number; the token is the first, by id, at which
    the cumulative probability exceeds it.

    Args:
        logits: Logits, float32 [rows, vocabulary]; not modified.
        samplers: Sampler of each row; none adjusts scores.

    Returns:
        Token ids, [rows] int64; `UNDEFINED` where logits are NaN or all infinite.
    """
    tokens = logits.argmax(dim=-1)
    drawn = [row for row, each in enumerate(samplers) if not each.greedy]
    if drawn:
        own = _draw(some_rows(logits, drawn), [samplers[row] for row in drawn])
        tokens[torch.tensor(drawn, device=logits.device)] = own
    chosen = logits.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    tokens = torch.where(torch.isfinite(chosen), tokens, UNDEFINED)  # argmax returns the index of a NaN
    found: IntArray = tokens.cpu().numpy()
    for sampler, token in zip(samplers, found.tolist(), strict=True):
        if token != UNDEFINED:
            sampler.record(token)
    return found


def _draw(logits: torch.Tensor, samplers: Sequence[Sampler]) -> torch.Tensor:
    """Random token of each row, [rows]; `UNDEFINED` where logits are NaN or all infinite."""
    params, vocabulary = [each.params for each in samplers], logits.shape[1]
    numbers = [
        [max(each.temperature, _LEAST_TEMPERATURE), each.top_p, each.min_p, sampler.draw()]
        for each, sampler in zip(params, samplers, strict=True)
    ]
    settings = torch.tensor(numbers, dtype=torch.float64).to(logits.device)
    temperature, top_p, min_p, share = settings.unbind(1)
    highest = logits.amax(dim=-1, keepdim=True)
    # Subtract first: a temperature near 0 then gives minus infinity at worst, whose weight is 0.
    weights = ((logits - highest).double() / temperature[:, None]).exp()
    limits = [each.top_k if 0 < each.top_k < vocabulary else vocabulary for each in params]
    if min(limits) < vocabulary:
        weights = weights.where(logits >= _least_kept(logits, limits), 0.0)
    if any(each.top_p < 1 for each in params):
        weights = weights.where(_nucleus(weights, top_p), 0.0)
    if any(each.min_p > 0 for each in params):
        weights = weights.where(weights >= min_p[:, None], 0.0)
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1:]
    # Below the total, whatever is rounded: the last token with a weight at most.
    wanted = torch.minimum(share[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = (sums <= wanted).sum(dim=-1)
    return torch.where(torch.isfinite(highest[:, 0]), tokens.clamp(max=vocabulary - 1), UNDEFINED)


def _least_kept(logits: torch.Tensor, limits: Sequence[int]) -> torch.Tensor:
    """The lowest logit of each row that its top-k keeps, [rows, 1]."""
    vocabulary = logits.shape[1]
    bounded = [limit if limit < vocabulary else 1 for limit in limits]
    ranked = logits.topk(max(bounded), dim=-1).values
    found = ranked.gather(1, torch.tensor(bounded, device=logits.device)[:, None] - 1)
    whole = torch.tensor([limit == vocabulary for limit in limits], device=logits.device)[:, None]
    return found.masked_fill(whole, -torch.inf)


def _nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Whether each token is one of the fewest most likely ones whose weights reach a share, [rows, vocabulary].

    Of equally likely tokens those with lower ids count as more likely; the most likely token is always inside.
    """
    ranked, order = weights.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(dim=-1) - ranked
    inside = before < top_p[:, None] * weights.sum(dim=-1, keepdim=True)
    inside[:, 0] = True
    return torch.zeros_like(inside).scatter(1, order, inside)
