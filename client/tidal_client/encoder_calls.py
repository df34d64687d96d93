"""What the clients' methods for encoders send, and how responses become results: one function per method.

`options` of all functions are the keyword arguments of the call, see `tidal_client.options.CallOptions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_args

import numpy as np

from tidal_client.codec import encoded, infer_request, read_classifications, text_column, text_columns
from tidal_client.encoder_results import (
    Answer,
    Embeddings,
    EmbeddingType,
    Entity,
    MaskPrediction,
    Ranked,
    SparseEmbedding,
)
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array, Classification
from tidal_client.rows import RowCall

#: Output of a model by element type of its embeddings.
EMBEDDING_OUTPUTS: Final[Mapping[EmbeddingType, str]] = {
    "float32": "embedding",
    "float16": "embedding_fp16",
    "int8": "embedding_int8",
    "binary": "embedding_binary",
}
_ELEMENTS: Final = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "binary": np.uint8}

T = TypeVar("T")


def classify_call(
    model: str,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    options: Mapping[str, object],
) -> RowCall[Classification]:
    """Return the call of `Client.classify_many`."""
    return _call(model, texts, pairs, outputs, options, read_classifications)


def embed_call(
    model: str,
    texts: Sequence[str],
    dtype: EmbeddingType,
    prompt: str | None,
    options: Mapping[str, object],
) -> RowCall[Array]:
    """Return the call of `Client.embed`; its rows are vectors.

    Raises:
        InvalidArgument: An argument has a wrong type, a text is not valid Unicode, or the element type is unknown.
    """
    output = EMBEDDING_OUTPUTS[checked_dtype(dtype)]
    options = {**options, "prompt": prompt}
    return _call(model, texts, None, [output], options, lambda outputs, rows: list(outputs[output]))


def checked_dtype(dtype: str) -> EmbeddingType:
    """Return an element type of embeddings.

    Raises:
        InvalidArgument: It is unknown; the message names the most similar one.
    """
    for name in EMBEDDING_OUTPUTS:
        if dtype == name:
            return name
    similar = get_close_matches(str(dtype), EMBEDDING_OUTPUTS, 1, 0.5)
    hint = f"; did you mean '{similar[0]}'?" if similar else ""
    raise InvalidArgument(f"dtype: expected {_either(get_args(EmbeddingType))}, got {dtype!r}{hint}")


def embeddings(vectors: Sequence[Array], dtype: EmbeddingType) -> Embeddings:
    """Return the result of `Client.embed`.

    Args:
        vectors: Vector of each text.
        dtype: Element type of the vectors.
    """
    empty = np.empty((0, 0), _ELEMENTS[dtype])
    return Embeddings(np.stack(vectors) if vectors else empty, dtype)


def rerank_call(
    model: str, query: str, documents: Sequence[str], top_n: int | None, options: Mapping[str, object]
) -> RowCall[float]:
    """Return the call of `Client.rerank`; its rows are the scores of the documents.

    Raises:
        InvalidArgument: An argument has a wrong type, a text is not valid Unicode, there are no documents, or `top_n`
            is below 1.
    """
    if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 1):
        raise InvalidArgument(f"top_n: expected a whole number of at least 1, or None for all, got {top_n!r}")
    pairs = text_column("documents", documents)
    if not len(pairs):
        raise InvalidArgument("documents: expected at least one document, got an empty list")
    columns = {"text_input": np.full((len(pairs), 1), encoded("query", query), np.object_), "text_pair": pairs}
    arguments = {"text_input": "query", "text_pair": "documents[]"}
    return RowCall(infer_request(model, columns, ["score"], options), arguments, read_scores)


def ranked(scores: Sequence[float], documents: Sequence[str], top_n: int | None) -> list[Ranked]:
    """Return documents in descending order of their scores; equal scores keep their order, NaN comes last.

    Args:
        scores: Score of each document.
        documents: Documents that were sent.
        top_n: Number of documents to return; None: all.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    return [Ranked(row, scores[row], documents[row]) for row in order[:top_n].tolist()]


def score_call(
    model: str, texts: Sequence[str], pairs: Sequence[str] | None, options: Mapping[str, object]
) -> RowCall[float]:
    """Return the call of `Client.score`; its rows are scores."""
    return _call(model, texts, pairs, ["score"], options, read_scores)


def entities_call(model: str, texts: Sequence[str], options: Mapping[str, object]) -> RowCall[tuple[Entity, ...]]:
    """Return the call of `Client.entities_many`; its rows are the entities of a text."""
    return _call(model, texts, None, ["entities"], options, read_entities)


def answer_call(
    model: str, questions: Sequence[str], contexts: Sequence[str], options: Mapping[str, object]
) -> RowCall[Answer]:
    """Return the call of `Client.answer_many`; its rows are the best answers.

    Raises:
        InvalidArgument: An argument has a wrong type, a text is not valid Unicode, or the numbers of questions and
            contexts differ.
    """
    columns = {"text_input": text_column("questions", questions), "text_pair": text_column("contexts", contexts)}
    if len(questions) != len(contexts):
        raise InvalidArgument(f"contexts: expected one per question ({len(questions)}), got {len(contexts)}")
    arguments = {"text_input": "questions[]", "text_pair": "contexts[]"}
    return RowCall(infer_request(model, columns, ["answers"], options), arguments, read_answers)


def masks_call(model: str, text: str, options: Mapping[str, object]) -> RowCall[tuple[tuple[MaskPrediction, ...], ...]]:
    """Return the call of `Client.predict_masks`; its only row has the predictions of each mask."""
    return _call(model, [text], None, ["predictions"], options, read_predictions)


def sparse_call(model: str, texts: Sequence[str], options: Mapping[str, object]) -> RowCall[SparseEmbedding]:
    """Return the call of `Client.sparse_embed`; its rows are sparse embeddings."""
    return _call(model, texts, None, ["indices", "weights"], options, read_sparse)


def _call(
    model: str,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    options: Mapping[str, object],
    read: Any,
) -> RowCall[Any]:
    request = infer_request(model, text_columns(texts, pairs), outputs, options)
    return RowCall(request, {"text_input": "texts[]", "text_pair": "pairs[]"}, read)


def read_scores(outputs: Mapping[str, Array], rows: int) -> list[float]:
    """Return the score of each row of a response."""
    return [float(score) for score in outputs["score"].reshape(rows)]


def read_entities(outputs: Mapping[str, Array], rows: int) -> list[tuple[Entity, ...]]:
    """Return the entities of each row of a response."""
    return [
        tuple(Entity(each["label"], each["score"], each["start"], each["end"], each["text"]) for each in entities)
        for entities in _json_rows(outputs["entities"], rows)
    ]


def read_answers(outputs: Mapping[str, Array], rows: int) -> list[Answer]:
    """Return the best answer of each row of a response, with all candidates."""
    found = []
    for candidates in _json_rows(outputs["answers"], rows):
        answers = tuple(Answer(each["answer"], each["score"], each["start"], each["end"]) for each in candidates)
        best = answers[0] if answers else Answer("", 0.0, 0, 0)
        found.append(Answer(best.text, best.score, best.start, best.end, answers))
    return found


def read_predictions(outputs: Mapping[str, Array], rows: int) -> list[tuple[tuple[MaskPrediction, ...], ...]]:
    """Return the predictions for the masks of each row of a response."""
    return [
        tuple(tuple(MaskPrediction(each["token"], each["token_id"], each["score"]) for each in mask) for mask in masks)
        for masks in _json_rows(outputs["predictions"], rows)
    ]


def read_sparse(outputs: Mapping[str, Array], rows: int) -> list[SparseEmbedding]:
    """Return the sparse embedding of each row of a response."""
    found = []
    for indices, weights in zip(outputs["indices"], outputs["weights"], strict=True):
        terms = indices >= 0  # shorter rows of a request end in -1
        found.append(SparseEmbedding(indices[terms], weights[terms]))
    return found


def _json_rows(output: Array, rows: int) -> list[Any]:
    return [json.loads(text) for text in output.reshape(rows)]


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
