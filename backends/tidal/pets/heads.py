"""What a task's head reads of the shared encoder and computes from it: one entry per task of encoders.

The answers that follow from it are those of `tidal.encoder_tasks`, which models without a shared encoder give too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tidal.encoder_tasks.entries import TASKS, EncoderTask, TaskOutput
from tidal.errors import InvalidArgument, did_you_mean
from tidal.pets.terms import EncoderOutputs, FloatArray, Head
from tidal.pets.vocabulary import ARRAYS, masked_scores, sparse_weights

Reads = Literal["pooled", "first", "tokens"]
_SPANS = 2  # outputs of a head for spans: where an answer starts and ends
_CLS = "cls"
_LEAST_NORM = 1e-12  # as in torch's `normalize`
#: Output of every task.
INPUT_TOKENS: Final = TaskOutput("input_tokens", "TYPE_INT32", (1,), "length of the query in tokens")


class HeadRows(NamedTuple):
    """Rows of a batch that have the same head, with what the head reads.

    Attributes:
        vectors: Pooled vectors, [rows, width], or hidden states of all tokens or of the first one, [rows, tokens,
            width]; those of padding are finite.
        lengths: Number of real tokens [rows].
        ids: Token ids of each row, [length]; empty unless the head reads them.
    """

    vectors: FloatArray
    lengths: npt.NDArray[np.integer[Any]]
    ids: Sequence[npt.NDArray[np.integer[Any]]] = ()


@dataclass(frozen=True, slots=True)
class HeadForm:
    """How the heads of a task are computed.

    Attributes:
        reads: Returns what a head reads: the pooled vector, the hidden state of the first token, or those of all
            tokens.
        compute: Computes the output that answers are made of, [rows, ...] or [rows, tokens, ...].
        outputs: Number of outputs of the linear layer; None: one for each label or word.
        vocabulary: Whether the head scores the words of the vocabulary.
    """

    reads: Callable[[Head], Reads]
    compute: Callable[[Head, HeadRows], FloatArray]
    outputs: int | None = None
    vocabulary: bool = False


def head_task(name: str) -> EncoderTask:
    """The task of encoders that a head belongs to.

    Args:
        name: Name of the task.

    Raises:
        InvalidArgument: There is no such task, or none that shares an encoder.
    """
    known = [known for known in HEADS if known in TASKS]
    if name not in known:
        raise InvalidArgument(f"unknown task '{name[:80]}' of a head: {did_you_mean(name[:80], known)}")
    return TASKS[name]


def check_head(head: Head, width: int) -> None:
    """Check that a head has the labels, the settings and the shape of its task.

    Args:
        head: The head.
        width: Size of the encoder's hidden states.

    Raises:
        InvalidArgument: It does not; names what differs and what is accepted.
    """
    entry = head_task(head.task)
    if entry.labelled != bool(head.labels):
        needs = "needs labels" if entry.labelled else "has no labels"
        raise InvalidArgument(f"the head has {len(head.labels)} labels; a head of task {head.task} {needs}")
    if head.task == "classification" and len(head.labels) == 1:
        raise InvalidArgument(
            f"the head has one label, '{head.labels[0]}', and the task classification; one output is a score: "
            "the tasks regression and rerank accept it"
        )
    _check_vocabulary(head, width)
    outputs, rows = head_outputs(head), head_rows(head)
    if head.weight.shape != (rows, width) or head.bias.shape != (outputs,):
        raise InvalidArgument(
            f"the head's weight and bias have the shapes {head.weight.shape} and {head.bias.shape}; accepted for task "
            f"{head.task} are {(rows, width)} and {(outputs,)}"
        )
    try:
        entry.read_settings(head.settings)
        unknown = set(head.settings.get("pooling", ())).difference(POOLINGS)
        if unknown:
            raise ValueError(f"pooling: {did_you_mean(min(unknown), POOLINGS)}")
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"the settings of task {head.task} are not valid: {reason}") from None


def head_outputs(head: Head) -> int:
    """Number of outputs of a head's linear layer."""
    if head.vocabulary is not None:
        return head.vocabulary.form.words
    outputs = HEADS[head.task].outputs
    return len(head.labels) if outputs is None else outputs


def head_rows(head: Head) -> int:
    """Number of rows of a head's own weights: none if they are the base's word embeddings."""
    return 0 if head.tied else head_outputs(head)


def head_reads(head: Head) -> Reads:
    """What a head reads."""
    return HEADS[head.task].reads(head)


def computed(
    head: Head,
    found: EncoderOutputs,
    indices: Sequence[int],
    lengths: npt.NDArray[np.integer[Any]],
    ids: Sequence[npt.NDArray[np.integer[Any]]] = (),
) -> FloatArray:
    """What a head's answers are made of, [rows, ...] or [rows, tokens, ...].

    Args:
        head: The head.
        found: Outputs of the encoder for a batch; hidden states of all tokens if the head reads them.
        indices: Rows of the batch that have the head.
        lengths: Number of real tokens of these rows.
        ids: Token ids of each of these rows, [length], which heads for masked words read.
    """
    reads, rows = head_reads(head), list(indices)
    vectors = found.pooled[rows]
    if reads != "pooled":
        assert found.hidden is not None  # an engine accepts no such head without hidden states
        vectors = found.hidden[rows] if reads == "tokens" else found.hidden[rows, :1]
    return HEADS[head.task].compute(head, HeadRows(vectors, lengths, ids))


def shared_outputs() -> tuple[TaskOutput, ...]:
    """Outputs that tasks of a shared encoder may have, each once, and the one that all have."""
    found: dict[str, TaskOutput] = {}
    for name in HEADS:
        if name in TASKS:
            for output in TASKS[name].outputs:
                found.setdefault(output.name, output)
    return (*found.values(), INPUT_TOKENS)


def _logits(head: Head, rows: HeadRows) -> FloatArray:
    return np.asarray(rows.vectors @ head.weight.T + head.bias, np.float32)


def _check_vocabulary(head: Head, width: int) -> None:
    scores, vocabulary = HEADS[head.task].vocabulary, head.vocabulary
    if scores != (vocabulary is not None):
        needs = "needs the layers before its scores of words" if scores else "does not score the words of a vocabulary"
        raise InvalidArgument(f"a head of task {head.task} {needs}")
    if vocabulary is not None:
        shapes = {name: array.shape for name, array in vocabulary.arrays.items()}
        accepted = dict.fromkeys(ARRAYS, (width,)) | {"weight": (width, width)}
        if shapes != accepted:
            raise InvalidArgument(f"the layers before a head's scores have the shapes {shapes}; accepted: {accepted}")


def _word_scores(head: Head) -> Callable[[FloatArray], FloatArray]:
    vocabulary = head.vocabulary
    assert vocabulary is not None  # see `check_head`
    return lambda hidden: np.asarray(vocabulary.transformed(hidden) @ head.weight.T + head.bias, np.float32)


def _masked(head: Head, rows: HeadRows) -> FloatArray:
    settings = head.settings
    return masked_scores(_word_scores(head), rows.vectors, rows.ids, settings["mask_id"], settings["max_masks"])


def _sparse(head: Head, rows: HeadRows) -> FloatArray:
    assert head.vocabulary is not None  # see `check_head`
    return sparse_weights(_word_scores(head), head.vocabulary.form, rows.vectors, rows.lengths)


def _embedding(head: Head, rows: HeadRows) -> FloatArray:
    lengths = np.asarray(rows.lengths)
    found = [POOLINGS[mode](rows.vectors, lengths) for mode in head.settings["pooling"]]
    vectors = np.concatenate(found, axis=1)
    if head.settings["normalized"]:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST_NORM)
    return np.asarray(vectors, np.float32)


def _embedding_reads(head: Head) -> Reads:
    return "first" if set(head.settings["pooling"]) == {_CLS} else "tokens"


def _real(vectors: FloatArray, lengths: npt.NDArray[Any]) -> FloatArray:
    """1 for tokens and 0 for padding, [rows, tokens]."""
    return np.asarray(np.arange(vectors.shape[1]) < lengths[:, None], np.float32)


def _sums(vectors: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted sums of hidden states, [rows, width]."""
    return np.asarray(np.matmul(weights[:, None], vectors)[:, 0], np.float32)


def _mean(vectors: FloatArray, lengths: npt.NDArray[Any]) -> FloatArray:
    return _sums(vectors, _real(vectors, lengths) / lengths[:, None])


def _mean_sqrt_len(vectors: FloatArray, lengths: npt.NDArray[Any]) -> FloatArray:
    return _sums(vectors, _real(vectors, lengths) / np.sqrt(lengths)[:, None])


def _weighted_mean(vectors: FloatArray, lengths: npt.NDArray[Any]) -> FloatArray:
    weights = _real(vectors, lengths) * np.arange(1, vectors.shape[1] + 1)
    return _sums(vectors, weights / weights.sum(axis=1, keepdims=True))


def _max(vectors: FloatArray, lengths: npt.NDArray[Any]) -> FloatArray:
    real = _real(vectors, lengths)[..., None] > 0
    return np.asarray(np.where(real, vectors, -np.inf).max(axis=1), np.float32)


def _last(vectors: FloatArray, lengths: npt.NDArray[Any]) -> FloatArray:
    return np.asarray(vectors[np.arange(len(vectors)), lengths - 1], np.float32)


#: Poolings by sentence-transformers' names: hidden states [rows, tokens, width] and lengths [rows] to [rows, width].
POOLINGS: Mapping[str, Callable[[FloatArray, npt.NDArray[Any]], FloatArray]] = {
    _CLS: lambda vectors, _: vectors[:, 0],
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}

#: Every task whose heads may share an encoder.
HEADS: Mapping[str, HeadForm] = {
    "classification": HeadForm(lambda _: "pooled", _logits),
    "multi-label": HeadForm(lambda _: "pooled", _logits),
    "regression": HeadForm(lambda _: "pooled", _logits),
    "rerank": HeadForm(lambda _: "pooled", _logits, outputs=1),
    "embedding": HeadForm(_embedding_reads, _embedding, outputs=0),
    "token-classification": HeadForm(lambda _: "tokens", _logits),
    "question-answering": HeadForm(lambda _: "tokens", _logits, outputs=_SPANS),
    "fill-mask": HeadForm(lambda _: "tokens", _masked, vocabulary=True),
    "sparse-embedding": HeadForm(lambda _: "tokens", _sparse, vocabulary=True),
}
#: Tasks whose heads read the pooled vector.
POOLED = frozenset(("classification", "multi-label", "regression", "rerank"))
