"""Batches, and the graph of a Hugging Face classifier that the engine tests compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NAMES = ("input_ids", "attention_mask", "token_type_ids")
MAX_BATCH, MAX_LENGTH = 8, 64

Batch = dict[str, npt.NDArray[Any]]


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        answer = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return {"logits": answer.logits}


def make_batch(batch: int, length: int, seed: int = 0) -> Batch:
    """Random tokens; the last row is padded by a third where there is room."""
    ids = np.random.default_rng(seed).integers(5, 150, (batch, length))
    mask = np.ones((batch, length), np.int64)
    if length > 3:
        ids[-1, -(length // 3) :] = 0
        mask[-1, -(length // 3) :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros((batch, length), np.int64)}
