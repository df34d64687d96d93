"""Random heads for every task that may share an encoder, and what they compute, written without Tidal's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from testing.truth import Truth
from tidal.encoder_tasks.entries import TASKS
from tidal.pets.heads import HEADS
from tidal.pets.terms import FloatArray, Head
from tidal.pets.vocabulary import VocabularyForm, VocabularyHead

POOLED = ("classification", "multi-label", "regression", "rerank")
LABELS = {
    "classification": ("down", "same", "up"),
    "multi-label": ("fast", "cheap", "good"),
    "regression": ("stars",),
    "token-classification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
}
MASK_ID, MAX_MASKS = 4, 3
# Epsilon of the normalisation of a head for words; large enough to matter.
_EPSILON = 1e-2
PROMPTS = {"query": "book a ", "passage": "the "}
# Spans that the pipeline of transformers keeps for one answer.
_SPANS = 12
HEAD_TASKS = [name for name in HEADS if name in TASKS]


def random_head(
    task: str, width: int, seed: int, pooling: tuple[str, ...] = ("mean",), *, words: int = 50, mask_id: int = MASK_ID
) -> Head:
    """A head of a task; `pooling` of an embedding, which is normalised unless the seed is odd.

    A head for `words` words has the base's weights if the seed is even; its form changes with the seed.
    """
    draw = np.random.default_rng([seed, 7])
    if HEADS[task].vocabulary:
        return _words_head(task, width, seed, draw, words, mask_id)
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


def _words_head(task: str, width: int, seed: int, draw: np.random.Generator, words: int, mask_id: int) -> Head:
    activations: tuple[Any, ...] = ("gelu", "relu", "silu", "gelu_tanh")
    form = VocabularyForm(
        words=words,
        tied=seed % 2 == 0,
        activation=activations[seed % 4],
        epsilon=_EPSILON,
        pooling="sum" if seed % 3 == 1 else "max",
        logarithms=2 if seed % 3 == 2 else 1,
    )

    def floats(*shape: int) -> FloatArray:
        return draw.normal(size=shape).astype(np.float32)

    layers = VocabularyHead(form, floats(width, width), floats(width), floats(width), floats(width))
    settings = {"mask_id": mask_id, "mask": "[MASK]", "max_masks": MAX_MASKS} if task == "fill-mask" else {}
    return Head(floats(0 if form.tied else words, width), floats(words), (), task, settings, vocabulary=layers)


def _scores(truth: Truth, head: Head, hidden: FloatArray) -> FloatArray:
    """Scores of all words for each token by torch, [tokens, words]."""
    layers = head.vocabulary
    assert layers is not None
    functions: dict[str, Any] = {
        "gelu": torch.nn.functional.gelu, "relu": torch.relu, "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda values: torch.nn.functional.gelu(values, approximate="tanh"),
    }  # fmt: skip
    activation = functions[layers.form.activation]
    own = {name: torch.from_numpy(array) for name, array in layers.arrays.items()}
    words = truth.model.get_input_embeddings().weight if layers.form.tied else torch.from_numpy(head.weight)
    with torch.no_grad():
        inner = activation(torch.nn.functional.linear(torch.from_numpy(hidden), own["weight"], own["bias"]))
        shape = (inner.shape[-1],)
        inner = torch.nn.functional.layer_norm(inner, shape, own["norm_weight"], own["norm_bias"], layers.form.epsilon)
        found: FloatArray = torch.nn.functional.linear(inner, words, torch.from_numpy(head.bias)).numpy()
    return found


def _of_words(truth: Truth, head: Head, hidden: FloatArray, ids: list[int]) -> FloatArray:
    scores = _scores(truth, head, hidden)
    if head.task == "fill-mask":
        out = np.zeros((head.settings["max_masks"], scores.shape[1]), np.float32)
        masked = [token for token, number in enumerate(ids) if number == head.settings["mask_id"]][: len(out)]
        out[: len(masked)] = scores[masked]
        return out.reshape(-1)
    assert head.vocabulary is not None
    weights = np.log1p(np.maximum(scores, 0))
    if head.vocabulary.form.logarithms == 2:
        weights = np.log1p(weights)
    return np.asarray(weights.max(0) if head.vocabulary.form.pooling == "max" else weights.sum(0))


def expected(truth: Truth, head: Head, ids: list[int], types: list[int] | None = None) -> FloatArray:
    """What a head's answers are made of for one text, from the task's own unmodified model."""
    if head.task in POOLED:
        return head.weight @ truth.pooled(ids, types) + head.bias
    hidden = truth.hidden(ids, types)
    if head.vocabulary is not None:
        return _of_words(truth, head, hidden, ids)
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

    Args:
        values: Logits of starts and ends [tokens, 2].
        encoded: Encoding of the question and the context by a fast tokenizer of transformers.
        context: The context.
        longest: Number of tokens of the longest answer.
        impossible: Whether a question may have no answer.
    """
    answers, none = answer_chances(values, encoded, context, longest)
    best = max(answers, key=answers.__getitem__, default=None)
    return None if best is None or (impossible and none >= answers[best]) else best


def answer_chances(
    values: FloatArray, encoded: Any, context: str, longest: int = 15
) -> tuple[dict[tuple[int, int], float], float]:
    """Probabilities of the likeliest answers, by their first character and the one after the last, and of no answer.

    Compares every span in turn. As in the pipeline of transformers, the likeliest spans of one text add up, and the
    first token, which stands for no answer, takes part in the probabilities. Arguments as of `answer_or_none`.
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
    return {place: texts[text] for text, place in places.items()}, float(chances[0, 0] * chances[0, 1])
