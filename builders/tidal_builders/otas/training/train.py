"""Trains a task: a head for every γ, and prompts for those above 0; the transformer stays as it is (OTAS §III-B)."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from tidal import device
from tidal.otas.manifest import OtasForm
from tidal.otas.tasks import Head, TaskParameters
from tidal_builders.otas.training.images import FloatArray, IntArray, LabelledImages, Pixels
from tidal_builders.otas.training.settings import Settings
from tidal_builders.otas.transformer import TransformerModel

# Told which γ is being trained, and the share of it that is done.
Progress = Callable[[int, float], None]
_WARM_UP = 0.1


def train_task(
    model: TransformerModel,
    base: str,
    form: OtasForm,
    images: LabelledImages,
    settings: Settings,
    work: Path,
    progress: Progress = lambda _gamma, _share: None,
) -> TaskParameters:
    """Train a task for all γ of a model, each by itself.

    What is finished, and every epoch of what is not, is kept in `work`: a training that was killed goes on where it
    stopped, and comes to the same.

    Args:
        model: the transformer, which is not changed.
        base: digest of its weights.
        form: of the published model.
        images: to train on.
        settings: of the training.
        work: a folder for what is kept; it may hold other trainings, and nothing in it is removed.
        progress: told of every epoch.
    """
    said = json.dumps([base, model.accumulate, images.digest, asdict(settings)], sort_keys=True)
    folder = work / hashlib.sha256(said.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    trained: dict[int, Mapping[str, torch.Tensor]] = {}
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(place)
    for gamma in form.gammas:
        done = folder / f"{gamma}.safetensors"
        if not done.exists():
            parts = _train_gamma(model, gamma, images, settings, folder / f"{gamma}.epoch", progress)
            _replace(done, partial(save_file, dict(parts)))
            (folder / f"{gamma}.epoch").unlink(missing_ok=True)
        trained[gamma] = load_file(done)
        progress(gamma, 1.0)
    model.to("cpu")
    heads = {gamma: Head(_array(parts["head.weight"]), _array(parts["head.bias"])) for gamma, parts in trained.items()}
    prompts = {gamma: _array(parts["prompts"]) for gamma, parts in trained.items() if gamma > 0}
    own = {gamma: head for gamma, head in heads.items() if gamma != 0}
    return TaskParameters(images.labels, heads[0], own, prompts)


class _Task(nn.Module):
    """What is trained for one γ."""

    def __init__(self, model: TransformerModel, gamma: int, classes: int) -> None:
        super().__init__()
        config = model.config
        self.head = nn.Linear(config.width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        # As wide as the embeddings of patches begin, which is what VPT takes.
        bound = math.sqrt(6 / (config.image.channels * math.prod(config.patch) + config.width))
        shape = (config.layers, max(gamma, 0), config.width)
        self.prompts = nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) if gamma > 0 else None


def _train_gamma(
    model: TransformerModel,
    gamma: int,
    images: LabelledImages,
    settings: Settings,
    checkpoint: Path,
    progress: Progress,
) -> Mapping[str, torch.Tensor]:
    """What a γ's head and prompts came to, by their names in `_Task`."""
    place = next(model.parameters()).device
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        task = _Task(model, gamma, len(images.labels)).to(place)
    pixels, truth = Pixels(images, model.config.image), torch.from_numpy(images.truth).to(place)
    if gamma > 0:

        def logits(rows: IntArray) -> torch.Tensor:
            assert task.prompts is not None
            prompts = task.prompts.expand(len(rows), -1, -1, -1)
            with fast(place):
                features = model(gamma, torch.from_numpy(pixels(rows)).to(place), prompts)
                found: torch.Tensor = task.head(features)
            return found.float()
    else:
        # Nothing before the head is trained, so that one pass over the images is enough.
        features = _features(model, gamma, pixels, settings.batch, place)

        def logits(rows: IntArray) -> torch.Tensor:
            found: torch.Tensor = task.head(features[rows])
            return found

    steps = settings.epochs * -(-len(images) // settings.batch)
    decayed = [{"params": task.head.parameters(), "weight_decay": settings.decay}]
    decayed += [] if task.prompts is None else [{"params": [task.prompts], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(decayed, lr=settings.rate)
    first = _resume(checkpoint, task, optimiser)
    step = first * -(-len(images) // settings.batch)
    for epoch in range(first, settings.epochs):
        for rows in _shuffled(len(images), settings, epoch):
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * schedule(step / steps)
            loss = functional.cross_entropy(logits(rows), truth[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step += 1
        if gamma > 0:
            state = {"epoch": epoch + 1, "task": task.state_dict(), "optimiser": optimiser.state_dict()}
            _replace(checkpoint, partial(torch.save, state))
        progress(gamma, (epoch + 1) / settings.epochs)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in task.state_dict().items()}


def _features(model: TransformerModel, gamma: int, pixels: Pixels, batch: int, place: torch.device) -> torch.Tensor:
    with torch.inference_mode():
        parts = [
            model(gamma, torch.from_numpy(pixels(range(begin, min(begin + batch, len(pixels))))).to(place))
            for begin in range(0, len(pixels), batch)
        ]
    return torch.cat(parts).clone()


def _shuffled(count: int, settings: Settings, epoch: int) -> Iterator[IntArray]:
    """Rows of each step of an epoch; the same whether the training was interrupted before it or not."""
    order = np.random.default_rng((settings.seed, epoch)).permutation(count)
    yield from (order[begin : begin + settings.batch] for begin in range(0, count, settings.batch))


def schedule(share: float) -> float:
    """Of the rate, when so much of the training is done."""
    if share < _WARM_UP:
        return (share + 1e-3) / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP)))


def _resume(checkpoint: Path, task: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Epochs that are done already."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    task.load_state_dict(state["task"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["epoch"])


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that it is there whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    write(aside)
    aside.replace(path)


def fast(place: torch.device) -> AbstractContextManager[object]:
    """bf16 products where the processor or GPU has them: half the time."""
    if place.type == "cuda" or {"avx512_bf16", "amx_bf16"} & set(device.cpu().features):
        return torch.autocast(place.type, torch.bfloat16)
    return nullcontext()


def _array(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.numpy()
    return values
