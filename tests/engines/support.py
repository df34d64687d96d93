"""Batches, and the graph of a Hugging Face classifier that the engine tests compile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tidal.device import DeviceKind
from tidal.engines import EngineKind, Precision, choose_device, stored_as
from tidal.errors import Unsupported

NAMES = ("input_ids", "attention_mask", "token_type_ids")
MAX_BATCH, MAX_LENGTH, STATIC_LENGTH = 8, 64, 24

Batch = dict[str, npt.NDArray[Any]]


class Setup(NamedTuple):
    """An engine kind and what it runs on."""

    kind: EngineKind
    device: DeviceKind


def _missing(setup: Setup) -> str | None:
    """Return why a setup cannot run here; None if it can."""
    try:
        choose_device(*setup)
    except Unsupported as error:
        return str(error)
    if setup == ("torch", "gpu") and not torch.cuda.is_available():
        return f"torch {torch.__version__} was built without CUDA"
    return None


def _param(setup: Setup, *more: Precision) -> Any:
    marks: list[pytest.MarkDecorator] = []
    if setup.device == "gpu":
        why = _missing(setup)
        marks = [pytest.mark.gpu, pytest.mark.skipif(why is not None, reason=str(why))]
    return pytest.param(*([setup] if not more else [setup, *more]), marks=marks, id="-".join([*setup, *more]))


SETUPS = [Setup("openvino", "cpu"), Setup("torch", "cpu"), Setup("torch", "gpu"), Setup("tensorrt", "gpu")]
EACH_SETUP = [_param(setup) for setup in SETUPS]
# A kind that is not installed has one skipped case for all of its precisions.
EACH_PRECISION = [
    _param(setup, precision) for setup in SETUPS for precision in (["fp32"] if _missing(setup) else stored_as(*setup))
]


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
    """Return random tokens; a third of the last row is padding if it is longer than 3."""
    ids = np.random.default_rng(seed).integers(5, 150, (batch, length))
    mask = np.ones((batch, length), np.int64)
    if length > 3:
        ids[-1, -(length // 3) :] = 0
        mask[-1, -(length // 3) :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros((batch, length), np.int64)}
