"""Agreement of a system's answers with those of the unmodified source models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders.formats import Values
from benchmarks.encoders.prepare import EncoderArtefacts
from benchmarks.encoders.sides import Side
from benchmarks.encoders.source import LONGEST, TASKS, Task
from benchmarks.encoders.workload import Row, Rows, Traffic, Workload

# Seed of the texts whose answers are compared.
_SEED = 2_000_000
_BATCH = 32


@dataclass(frozen=True)
class References:
    """Answers of the source models.

    Attributes:
        requests: Compared requests of each task.
        values: Answers of the source model to each of them, [rows, values].
    """

    requests: Mapping[Task, Sequence[Rows]]
    values: Mapping[Task, Sequence[Values]]


def make_references(artefacts: EncoderArtefacts, workload: Workload, count: int) -> References:
    """Compute the answers of the source models with transformers in fp32.

    Args:
        artefacts: Prepared artefacts.
        workload: Generator of requests.
        count: Number of requests per task and kind of lengths.
    """
    requests: dict[Task, list[Rows]] = {}
    values: dict[Task, list[Values]] = {}
    for task in TASKS:
        found = [
            rows
            for lengths in ("tweets", "documents")
            for rows in workload.requests(Traffic(task, lengths), count, _SEED)
        ]
        requests[task] = found
        encoded = encode_with_source(artefacts.source(task), task, [row for rows in found for row in rows])
        values[task] = np.split(encoded, np.cumsum([len(rows) for rows in found])[:-1])
    return References(requests, values)


def encode_with_source(source: Path, task: Task, rows: Sequence[Row]) -> Values:
    """Return the embeddings, or the scores between 0 and 1, that the source model has for rows, [rows, values].

    Embeddings are the normalised means of the tokens' hidden states, as the model's sentence-transformers files say.

    Args:
        source: Folder of the model in Hugging Face's format.
        task: Task of the model.
        rows: Texts, or pairs of texts.
    """
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    kind: Any = AutoModel if task == "embed" else AutoModelForSequenceClassification
    model = kind.from_pretrained(source).eval()
    found = []
    with torch.inference_mode():
        for at in range(0, len(rows), _BATCH):
            batch = list(rows[at : at + _BATCH])
            inputs = tokenizer(batch, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
            if task == "rerank":
                found.append(torch.sigmoid(model(**inputs).logits))
                continue
            hidden, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
            found.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))
    return np.asarray(torch.cat(found).numpy(), np.float64)


def agreement(side: Side, references: References, task: Task) -> float:
    """Return the smallest cosine of embeddings, or the largest difference of scores, with the source model's.

    Args:
        side: Running system.
        references: Answers of the source models.
        task: Task of the system's model.
    """
    answers = [side.answer(rows) for rows in references.requests[task]]
    pairs = list(zip(answers, references.values[task], strict=True))
    if task == "rerank":
        return max(float(np.abs(answer - wanted).max()) for answer, wanted in pairs)
    return min(float(cosines(answer, wanted).min()) for answer, wanted in pairs)


def cosines(a: Values, b: Values) -> Values:
    """Return the cosine of each row of `a` with that of `b`, [rows]."""
    product: Values = (a * b).sum(1)
    found: Values = product / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return found
