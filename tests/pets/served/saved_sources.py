"""Fine-tuned classifiers of a base as transformers and peft save them, and the command that imports them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from typer.testing import CliRunner, Result

from tidal.commands import tasks as command
from tidal.pets.terms import FloatArray

LABELS = ("down", "same", "up")
TEXTS = [
    "good film", "the service was not very good", "book a flight to the city, please", "never again", "best song",
    "why was the train so slow today?", "i love this restaurant and its food", "cancel my hotel",
]  # fmt: skip
# Kind of the task that each source becomes, and options of the command.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "full": ("diff_pruning", ("--sparsity", "0")),
    "sparse": ("diff_pruning", ("--sparsity", "0.99")),
    "bitfit": ("bitfit", ()),
    "masks": ("maskbert", ()),
    "lora": ("lora", ("--labels", ",".join(LABELS))),
}


@dataclass(frozen=True)
class Source:
    """A folder to import, and the unmodified model's logits for `TEXTS`."""

    folder: Path
    logits: FloatArray

    def data(self, path: Path) -> Path:
        """Write a labelled file whose labels the source predicts."""
        rows = [f"{text}\t{LABELS[label]}" for text, label in zip(TEXTS, self.logits.argmax(1), strict=True)]
        path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
        return path


def answers(model: Any, tokenizer: Any) -> FloatArray:
    with torch.inference_mode():
        return np.concatenate([model(**tokenizer(text, return_tensors="pt")).logits.numpy() for text in TEXTS])


def fine_tuned(base: Path, folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> Source:
    """Save a checkpoint with a classifier of its own, and with the weights that `change` returns for their names."""
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
    model = AutoModelForSequenceClassification.from_pretrained(base, **names)
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        for name, weight in model.named_parameters():
            if name.startswith("classifier"):
                weight.copy_(torch.randn_like(weight))
            elif "embeddings" not in name or "LayerNorm" in name:
                new = change(name, weight)
                if new is not None:
                    weight.copy_(new)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Source(folder, answers(model.eval(), tokenizer))


def share(weight: torch.Tensor, part: float) -> torch.Tensor:
    """A mask of a share of a matrix, chosen at random."""
    found = torch.zeros(weight.numel(), dtype=torch.bool)
    found[torch.randperm(weight.numel())[: int(part * weight.numel())]] = True
    return found.view_as(weight)


def low_rank(base: Path, folder: Path, **options: Any) -> Source:
    """Save a LoRA adapter with random values by peft."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        model = AutoModelForSequenceClassification.from_pretrained(base)
        chosen = {"task_type": "SEQ_CLS", "r": 4, "lora_alpha": 8, "target_modules": ["query", "value"]} | options
        lora = get_peft_model(model, LoraConfig(**chosen))
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * 0.2)
    lora.save_pretrained(folder)
    return Source(folder, answers(lora.eval(), AutoTokenizer.from_pretrained(base)))


def rename_base(lora: Path, folder: Path, name: str | None) -> Path:
    """Copy an adapter and change the name of its base."""
    shutil.copytree(lora, folder)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": name}))
    return folder


def save_sources(base: Path, folder: Path) -> dict[str, Source]:
    """Save one source for each of `KINDS`.

    Args:
        base: Folder of the base.
        folder: Folder for the sources.
    """

    def noise(weight: torch.Tensor) -> torch.Tensor:
        return weight + torch.randn_like(weight) * 0.1

    def matrix(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[str, torch.Tensor], torch.Tensor | None]:
        return lambda _name, weight: change(weight) if weight.ndim == 2 else None

    changes: dict[str, Callable[[str, torch.Tensor], torch.Tensor | None]] = {
        "full": lambda _name, weight: noise(weight),
        "sparse": lambda _name, weight: (
            torch.where(share(weight, 0.009), noise(weight) + 0.5, weight) if weight.ndim == 2 else noise(weight)
        ),
        "bitfit": lambda _name, weight: noise(weight) if weight.ndim == 1 else None,
        "masks": matrix(lambda weight: torch.where(share(weight, 0.05), 0.0, weight)),
    }
    found = {name: fine_tuned(base, folder / name, change) for name, change in changes.items()}
    return found | {"lora": low_rank(base, folder / "lora")}


def add(repository: Path, model: str, source: Path, name: str, *options: str | Path) -> Result:
    """Add a task to a model by the command."""
    arguments = ["add", model, str(source), "--name", name, *map(str, options), "--repository", str(repository)]
    return CliRunner().invoke(command.tasks, arguments)
