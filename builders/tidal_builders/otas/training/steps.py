"""Common parts of trainings: order of the images, learning rate, and checkpoints."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tidal import device
from tidal_builders.otas.training.images import IntArray
from tidal_builders.otas.training.settings import ImageTrainingSettings

_WARM_UP_SHARE = 0.1


def shuffled(count: int, settings: ImageTrainingSettings, epoch: int) -> Iterator[IntArray]:
    """Yield the rows of each step of an epoch, independent of earlier interruptions."""
    order = np.random.default_rng((settings.seed, epoch)).permutation(count)
    yield from (order[begin : begin + settings.batch] for begin in range(0, count, settings.batch))


def schedule(share: float) -> float:
    """Return the factor of the learning rate after a share of the training: warm-up, then cosine decay."""
    if share < _WARM_UP_SHARE:
        return (share + 1e-3) / _WARM_UP_SHARE
    return 0.5 * (1 + math.cos(math.pi * (share - _WARM_UP_SHARE) / (1 - _WARM_UP_SHARE)))


class Stateful(Protocol):
    """Part of a training's state."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""


def save_checkpoint(checkpoint: Path, epochs: int, parts: Mapping[str, Stateful]) -> None:
    """Write the state of a training after a number of epochs."""
    state = {"epoch": epochs, **{name: part.state_dict() for name, part in parts.items()}}
    replace(checkpoint, partial(torch.save, state))


def load_checkpoint(checkpoint: Path, parts: Mapping[str, Stateful]) -> int:
    """Restore the state that `save_checkpoint` wrote, if any; returns the number of finished epochs."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["epoch"])


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    temporary.replace(path)


def autocast(target_device: torch.device) -> AbstractContextManager[object]:
    """Return a context for bf16 matrix products where the processor or GPU supports them: half the time."""
    if target_device.type == "cuda" or {"avx512_bf16", "amx_bf16"} & set(device.cpu().features):
        return torch.autocast(target_device.type, torch.bfloat16)
    return nullcontext()


def prepared(model: nn.Module, target_device: torch.device) -> nn.Module:
    """Return a frozen model for a device, with the products' weights in the type that `autocast` converts them to.

    `autocast` would convert frozen weights again for every product; converted once, they give the same results.

    Args:
        model: The model, which is not changed.
        target_device: Device of the result.
    """
    with autocast(target_device):
        if not torch.is_autocast_enabled(target_device.type):
            return model.to(target_device)
        converted = torch.get_autocast_dtype(target_device.type)
    found = copy.deepcopy(model).to(target_device)
    for module in found.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.to(converted)
    return found
