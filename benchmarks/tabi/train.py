"""Fine-tunes a cascade's levels from the real weights of all-MiniLM-L6-v2: its first layers, all of its width.

The large level learns the labels; the smaller ones learn the labels and the large one's logits for the same texts
(distillation).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.report import progress
from benchmarks.tabi.tasks import DataTask, TaskQueries, TaskSplit
from demo.train import minilm_folder
from tidal import device

if TYPE_CHECKING:
    import torch

# Number of layers, of 6, of each level.
LAYERS = {"small": 2, "middle": 4, "large": 6}
# Learning rates: with fewer layers, each has to change more.
_RATES = {"small": 3e-4, "middle": 2e-4, "large": 1.5e-4}
# The pooler was pretrained for another purpose, and the classifier not at all.
_HEAD_RATE = 1e-3
_WARM_UP = 0.06
_BATCH = 32
# Batches have similar lengths: texts are sorted within so many batches.
_POOL = 40
_LONGEST = 320
# Weight of the distance from the large level in a smaller level's loss, both softened by a temperature.
_DISTILLED = 0.5
_SOFTENING = 2.0


def fine_tune(task: DataTask, level: str, split: TaskSplit, target: Path, teacher: Path | None) -> None:
    """Train one level and write it as a Hugging Face folder, atomically, unless the folder exists.

    Args:
        task: Task to train for.
        level: Name of the level, a key of `LAYERS`.
        split: Data of the task.
        target: Folder to write.
        teacher: Folder of the trained level to distil from; None learns from labels only.
    """
    if (target / "config.json").exists():
        return
    # Threads that spin while they wait occupy the cores that they wait for if there is other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    begin = time.monotonic()
    torch.manual_seed(LAYERS[level])
    source = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = BertConfig.from_pretrained(
        source,
        num_hidden_layers=LAYERS[level],
        id2label=dict(enumerate(split.labels)),
        label2id={label: i for i, label in enumerate(split.labels)},
    )
    model = BertForSequenceClassification.from_pretrained(source, config=config)
    # Half of all parameters, with a dense gradient, for a vocabulary of which a small task uses little.
    model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    tokens = _encode(tokenizer, split.train)
    truth = torch.tensor([split.labels.index(label) for label in split.train.truth])
    taught = None if teacher is None else _logits(_open(teacher), tokenizer, tokens)
    head = [*model.bert.pooler.parameters(), *model.classifier.parameters()]
    body = [p for name, p in model.bert.named_parameters() if p.requires_grad and not name.startswith("pooler")]
    optimiser = torch.optim.AdamW(
        [{"params": body, "lr": _RATES[level]}, {"params": head, "lr": _HEAD_RATE}], weight_decay=0.01
    )
    steps = task.epochs * -(-len(tokens) // _BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / (_WARM_UP * steps), (steps - step) / steps)
    )
    rng = np.random.default_rng(LAYERS[level])
    model.train()
    for epoch in range(task.epochs):
        progress(f"training {task.name} {level}: epoch {epoch + 1} of {task.epochs}")
        for rows in _batches(tokens, rng):
            with _precision():
                logits = model(**_pad(tokenizer, [tokens[row] for row in rows])).logits
            loss = _loss(logits.float(), truth[rows], None if taught is None else taught[rows])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*body, *head], 1.0)
            optimiser.step()
            schedule.step()
    accuracy = _accuracy(model, tokenizer, split.held_out, split.labels)
    seconds = time.monotonic() - begin
    progress(f"trained {task.name} {level}: accuracy {accuracy:.3f} on held-out queries, {seconds:.0f} s")
    aside = target.with_name(f".{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    (aside / "training.json").write_text(json.dumps({"held_out_accuracy": accuracy, "seconds": round(seconds)}))
    aside.rename(target)


def longest_query(split: TaskSplit) -> int:
    """Return the number of tokens of the longest query of a task."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    parts = (split.train, split.held_out, split.dev)
    return max(len(row["input_ids"]) for part in parts for row in _encode(tokenizer, part))


def _encode(tokenizer: Any, queries: TaskQueries) -> list[dict[str, list[int]]]:
    columns = [list(column) for column in zip(*queries.texts, strict=True)]
    found = tokenizer(*columns, truncation=True, max_length=_LONGEST)
    return [{name: found[name][row] for name in ("input_ids", "token_type_ids")} for row in range(len(queries))]


def _batches(tokens: list[dict[str, list[int]]], rng: np.random.Generator) -> Iterator[list[int]]:
    order = rng.permutation(len(tokens)).tolist()
    batches = []
    for start in range(0, len(order), _BATCH * _POOL):
        pool = sorted(order[start : start + _BATCH * _POOL], key=lambda row: len(tokens[row]["input_ids"]))
        batches += [pool[first : first + _BATCH] for first in range(0, len(pool), _BATCH)]
    for place in rng.permutation(len(batches)).tolist():
        yield batches[place]


def _pad(tokenizer: Any, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return dict(tokenizer.pad(rows, return_tensors="pt"))


def _precision() -> Any:
    """Use bf16 if the processor supports it: half the time."""
    import torch

    fast = {"avx512_bf16", "amx_bf16"} & set(device.cpu().features)
    return torch.autocast("cpu", torch.bfloat16) if fast else nullcontext()


def _loss(logits: torch.Tensor, truth: torch.Tensor, taught: torch.Tensor | None) -> torch.Tensor:
    from torch.nn import functional

    hard = functional.cross_entropy(logits, truth)
    if taught is None:
        return hard
    student, teacher_log = (functional.log_softmax(each / _SOFTENING, -1) for each in (logits, taught))
    distance = functional.kl_div(student, teacher_log, reduction="batchmean", log_target=True) * _SOFTENING**2
    return (1 - _DISTILLED) * hard + _DISTILLED * distance


def _open(folder: Path) -> Any:
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification.from_pretrained(folder)


def _logits(model: Any, tokenizer: Any, tokens: list[dict[str, list[int]]]) -> torch.Tensor:
    """Return logits, [queries, classes]."""
    import torch

    model.eval()
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]["input_ids"]))
    found = torch.empty(len(tokens), model.config.num_labels)
    with torch.no_grad():
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            with _precision():
                found[rows] = model(**_pad(tokenizer, [tokens[row] for row in rows])).logits.float()
    return found


def _accuracy(model: Any, tokenizer: Any, queries: TaskQueries, labels: tuple[str, ...]) -> float:
    found = _logits(model, tokenizer, _encode(tokenizer, queries)).argmax(-1).tolist()
    return float(np.mean([labels[label] == truth for label, truth in zip(found, queries.truth, strict=True)]))
