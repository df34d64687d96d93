"""What every training here does: the order of steps, their rate, and an epoch's state on the disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tidal import device
from tidal_builders.otas.training.images import IntArray
from tidal_builders.otas.training.settings import Settings

_WARM_UP = 0.1


def shuffled(count: int, settings: Settings, epoch: int) -> Iterator[IntArray]:
    """Rows of each step of an epoch; the same whether the training was interrupted before it or not."""
    order = np.random.default_rng((settings.seed, epoch)).permutation(count)
    yield from (order[begin : begin + settings.batch] for begin in range(0, count, settings.batch))


def schedule(share: float) -> float:
    """Of the rate, when so much of the training is done."""
    if share < _WARM_UP:
        return (share + 1e-3) / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP)))


def keep(checkpoint: Path, epochs: int, trained: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Write down a training after so many epochs."""
    state = {"epoch": epochs, "task": trained.state_dict(), "optimiser": optimiser.state_dict()}
    replace(checkpoint, partial(torch.save, state))


def resume(checkpoint: Path, trained: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Take up what `keep` wrote, where it did, and give the number of epochs that are done."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    trained.load_state_dict(state["task"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["epoch"])


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that it is there whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    write(aside)
    aside.replace(path)


def fast(place: torch.device) -> AbstractContextManager[object]:
    """bf16 products where the processor or GPU has them: half the time."""
    if place.type == "cuda" or {"avx512_bf16", "amx_bf16"} & set(device.cpu().features):
        return torch.autocast(place.type, torch.bfloat16)
    return nullcontext()
