"""Random heads for every task that may share an encoder, and what they compute, written without Tidal's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from testing.truth import Truth
from tidal.encoder_tasks.entries import TASKS
from tidal.pets.heads import HEADS
from tidal.pets.terms import FloatArray, Head

POOLED = ("classification", "multi-label", "regression", "rerank")
LABELS = {
    "classification": ("down", "same", "up"),
    "multi-label": ("fast", "cheap", "good"),
    "regression": ("stars",),
    "token-classification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
}
PROMPTS = {"query": "book a ", "passage": "the "}
# Spans that the pipeline of transformers keeps for one answer.
_SPANS = 12
HEAD_TASKS = [name for name in HEADS if name in TASKS]


def random_head(task: str, width: int, seed: int, pooling: tuple[str, ...] = ("mean",)) -> Head:
    """A head of a task; `pooling` of an embedding, which is normalised unless the seed is odd."""
    draw = np.random.default_rng([seed, 7])
    labels = LABELS.get(task, ())
    outputs = {"embedding": 0, "question-answering": 2, "rerank": 1}.get(task, len(labels))
    settings: dict[str, Any] = {}
    if task == "embedding":
        settings = {
            "dimension": width * len(pooling), "pooling": list(pooling), "normalized": seed % 2 == 0,
            "similarity": "cosine", "prompts": PROMPTS, "default_prompt": None,
        }  # fmt: skip
    elif task == "rerank":
        settings = {"activation": "sigmoid"}
    elif task == "token-classification":
        settings = {"word_pieces": True, "unknown_id": 1}
    weight = draw.normal(size=(outputs, width)).astype(np.float32)
    return Head(weight, draw.normal(size=outputs).astype(np.float32), labels, task, settings)


def expected(truth: Truth, head: Head, ids: list[int], types: list[int] | None = None) -> FloatArray:
    """What a head's answers are made of for one text, from the task's own unmodified model."""
    if head.task in POOLED:
        return head.weight @ truth.pooled(ids, types) + head.bias
    hidden = truth.hidden(ids, types)
    if head.task != "embedding":
        return hidden @ head.weight.T + head.bias
    length = len(hidden)
    weights = np.arange(1, length + 1)
    ways = {
        "cls": hidden[0], "max": hidden.max(0), "mean": hidden.mean(0), "lasttoken": hidden[-1],
        "mean_sqrt_len_tokens": hidden.sum(0) / length**0.5,
        "weightedmean": (hidden * weights[:, None]).sum(0) / weights.sum(),
    }  # fmt: skip
    vector = np.concatenate([ways[mode] for mode in head.settings["pooling"]])
    return np.asarray(vector / np.linalg.norm(vector) if head.settings["normalized"] else vector)


def entities(truth: Truth, head: Head, tokenizer: Any, text: str, aggregation: str) -> list[dict[str, Any]]:
    """Entities of a text by the pipeline of transformers, on the task's own model with the head's classifier."""
    import transformers

    labels = dict(enumerate(head.labels))
    model = transformers.BertForTokenClassification(truth.model.config.__class__(**truth.model.config.to_dict()))
    model.config.id2label, model.config.label2id = labels, {label: number for number, label in labels.items()}
    model.bert, model.num_labels = truth.model, len(labels)
    model.classifier = torch.nn.Linear(truth.model.config.hidden_size, len(labels))
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(head.weight))
        model.classifier.bias.copy_(torch.from_numpy(head.bias))
    find = transformers.pipeline(
        "token-classification", model=model.eval(), tokenizer=tokenizer, aggregation_strategy=aggregation
    )
    return [
        {"label": each["entity_group"], "score": float(each["score"]), "start": each["start"], "end": each["end"]}
        for each in find(text)
    ]


def answer_or_none(
    values: FloatArray, encoded: Any, context: str, longest: int = 15, *, impossible: bool = True
) -> tuple[int, int] | None:
    """First character of the likeliest answer and the one after its last, or None if no answer is likelier.

    Compares every span in turn. As in the pipeline of transformers, the likeliest spans of one text add up, and the
    first token, which stands for no answer, takes part in the probabilities.

    Args:
        values: Logits of starts and ends [tokens, 2].
        encoded: Encoding of the question and the context by a fast tokenizer of transformers.
        context: The context.
        longest: Number of tokens of the longest answer.
        impossible: Whether a question may have no answer.
    """
    words, parts = encoded.word_ids(0), encoded.sequence_ids(0)
    allowed = [token for token, part in enumerate(parts) if part == 1]
    powers = np.exp((values - values.max(0)).astype(np.float64))
    chances = powers / powers[[0, *allowed]].sum(0)
    spans = []
    for first in allowed:
        for last in allowed:
            if first <= last < first + longest:
                begin, end = (encoded.word_to_chars(0, words[token], sequence_index=1) for token in (first, last))
                spans.append((float(chances[first, 0] * chances[last, 1]), begin.start, end.end))
    texts: dict[str, float] = {}
    places: dict[str, tuple[int, int]] = {}
    for chance, start, stop in sorted(spans, reverse=True)[:_SPANS]:
        text = context[start:stop].lower()
        texts[text] = texts.get(text, 0.0) + chance
        places.setdefault(text, (start, stop))
    best = max(texts, key=texts.__getitem__, default=None)
    none = chances[0, 0] * chances[0, 1]
    return None if best is None or (impossible and none >= texts[best]) else places[best]
