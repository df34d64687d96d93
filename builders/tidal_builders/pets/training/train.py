"""Trains a task of any kind and returns it in the unified form."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import Module, Parameter

from tidal import device
from tidal.errors import InvalidArgument
from tidal.pets.terms import BaseLayers, Head, TaskTerms
from tidal_builders.pets.training.added import Adapters, LowRank
from tidal_builders.pets.training.changed import Biases, Differences, Masks, Terms, array_of
from tidal_builders.pets.training.examples import Examples
from tidal_builders.pets.training.settings import TrainingSettings

_WARM_UP = 0.06
_DROPOUT = 0.1

Progress = Callable[[float], None]


class TrainableTerms(Protocol):
    """The trainable part of an encoder for one kind."""

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters to train."""

    def on_progress(self, done: float) -> None:
        """Called after every step; `done` is the share of the training."""

    def terms(self) -> Terms:
        """The trained terms."""


@dataclass(frozen=True, slots=True)
class TrainableKind:
    """How a kind is trained.

    Attributes:
        rate: Default learning rate of what the kind adds or changes, for a few epochs of a few thousand texts.
        prepare: Makes an encoder's trainable part.
    """

    rate: float
    prepare: Callable[[Module, BaseLayers, TrainingSettings], TrainableTerms]


#: The kinds that can be trained, by name.
TRAINABLE: dict[str, TrainableKind] = {
    "adapter": TrainableKind(1e-3, Adapters),
    "bitfit": TrainableKind(2e-3, Biases),
    "diff_pruning": TrainableKind(2e-4, Differences),
    "lora": TrainableKind(1e-3, LowRank),
    # A mask changes only when a score crosses the threshold: long steps.
    "maskbert": TrainableKind(1e-2, Masks),
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained task.

    Attributes:
        terms: Terms of the task.
        losses: Mean loss of every epoch.
        seconds: Duration of the training.
    """

    terms: TaskTerms
    losses: tuple[float, ...]
    seconds: float


def train_task(
    encoder: Module,
    tokenizer: Any,
    base: BaseLayers,
    kind: str,
    texts: Sequence[Sequence[str]],
    truth: Sequence[str],
    labels: Sequence[str],
    settings: TrainingSettings = TrainingSettings(),  # noqa: B008 - immutable
    progress: Progress = lambda _: None,
) -> Trained:
    """Train a task of one kind.

    Args:
        encoder: Encoder of transformers, as `AutoModel` loads it. It is changed: load another one for the next task.
        tokenizer: Tokenizer of the encoder.
        base: Layers of the encoder.
        kind: Kind of the task, one of `TRAINABLE`.
        texts: Texts of one string each, or of two.
        truth: Label of each text.
        labels: All labels, in the order of the classifier's outputs.
        settings: Settings of the training.
        progress: Called with the share that is done, after every step.

    Raises:
        InvalidArgument: The kind cannot be trained, there are no texts, or a label is not one of `labels`.
    """
    if kind not in TRAINABLE:
        raise InvalidArgument(f"tasks of the kind '{kind}' cannot be trained; accepted: {', '.join(TRAINABLE)}")
    trainable = TRAINABLE[kind]
    rate = trainable.rate if settings.rate is None else settings.rate
    unknown = sorted(set(truth) - set(labels))
    if unknown or not texts or len(texts) != len(truth):
        reason = f"label '{unknown[0]}' is not one of the task's" if unknown else "every text needs a label"
        raise InvalidArgument(f"{len(texts)} texts and {len(truth)} labels: {reason}")
    # Threads that wait by spinning occupy the cores that they wait for, if other work runs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    begin = time.monotonic()
    torch.manual_seed(settings.seed)
    encoder.requires_grad_(False)
    change = trainable.prepare(encoder, base, settings)
    head = torch.nn.Linear(base.width, len(labels))
    torch.nn.init.normal_(head.weight, std=0.02)
    torch.nn.init.zeros_(head.bias)
    examples = Examples(tokenizer, texts, settings.longest)
    wanted = torch.tensor([list(labels).index(label) for label in truth])
    parameters = change.parameters
    optimiser = torch.optim.AdamW(
        [{"params": parameters, "lr": rate}, {"params": head.parameters(), "lr": settings.head_rate}], weight_decay=0.0
    )
    steps = settings.epochs * -(-len(examples) // settings.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / max(1.0, _WARM_UP * steps), (steps - step) / steps)
    )
    draw = np.random.default_rng(settings.seed)
    encoder.train()
    losses, step = [], 0
    for _ in range(settings.epochs):
        total = 0.0
        for rows in examples.shuffled(settings.batch, draw):
            with _precision():
                pooled = torch.nn.functional.dropout(pooled_vectors(encoder, examples.padded(rows)), _DROPOUT)
                logits = head(pooled)
            loss = torch.nn.functional.cross_entropy(logits.float(), wanted[rows])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*parameters, *head.parameters()], 1.0)
            optimiser.step()
            schedule.step()
            step += 1
            change.on_progress(step / steps)
            progress(step / steps)
            total += len(rows) * loss.item()
        losses.append(total / len(examples))
    linear, norm = change.terms()
    terms = TaskTerms(Head(array_of(head.weight), array_of(head.bias), tuple(labels)), linear, norm)
    return Trained(terms, tuple(losses), time.monotonic() - begin)


def pooled_vectors(encoder: Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The vectors [rows, width] that classifiers read: the pooler's, or the first token's where there is none."""
    found = encoder(**inputs)
    pooled = getattr(found, "pooler_output", None)
    vectors: torch.Tensor = found.last_hidden_state[:, 0] if pooled is None else pooled
    return vectors


def _precision() -> AbstractContextManager[object]:
    """bf16 products where the processor has them: half the time."""
    fast = {"avx512_bf16", "amx_bf16"} & set(device.cpu().features)
    return torch.autocast("cpu", torch.bfloat16) if fast else nullcontext()
