"""What `tidal infer` shows of a response: one entry per kind of model, chosen by the outputs of the response."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidal_client import encoder_calls as calls
from tidal_client.results import Array, Classification

# Numbers of a vector, and terms of a sparse one, that the table shows.
_SHOWN_VALUES, _SHOWN_TERMS = 4, 6


@dataclass(frozen=True, slots=True)
class ResponseKind:
    """How results of a kind of model are shown.

    Attributes:
        outputs: Outputs of which responses of this kind have at least one.
        columns: Names of the table's columns after the text.
        rows: Returns the cells of a result, one list per row of the table.
        fields: Returns the members of a result's JSON object.
    """

    outputs: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Callable[[Mapping[str, Array]], list[list[str]]]
    fields: Callable[[Mapping[str, Array]], dict[str, Any]]


def kind_of(result: Classification) -> ResponseKind | None:
    """Return the kind of a response; None: it classifies."""
    return next((kind for kind in _KINDS if any(name in result.other for name in kind.outputs)), None)


def batch_of_one(result: Classification) -> dict[str, Array]:
    """Return the outputs of a result as a response with one row."""
    return {name: value[np.newaxis] for name, value in result.other.items()}


def _embedding(outputs: Mapping[str, Array]) -> tuple[str, Array]:
    return next((name, outputs[name][0]) for name in calls.EMBEDDING_OUTPUTS.values() if name in outputs)


def _embedding_rows(outputs: Mapping[str, Array]) -> list[list[str]]:
    name, vector = _embedding(outputs)
    binary = name == calls.EMBEDDING_OUTPUTS["binary"]
    shown = [f"{value:.4g}" for value in vector[:_SHOWN_VALUES].tolist()] + ["…"] * (len(vector) > _SHOWN_VALUES)
    norm = "" if binary else f"{np.linalg.norm(vector.astype(np.float64)):.4g}"
    return [[str(len(vector) * (8 if binary else 1)), norm, ", ".join(shown)]]


def _embedding_fields(outputs: Mapping[str, Array]) -> dict[str, Any]:
    name, vector = _embedding(outputs)
    return {name: vector.tolist()}


def _entity_rows(outputs: Mapping[str, Array]) -> list[list[str]]:
    (entities,) = calls.read_entities(outputs, 1)
    return [[each.text, each.label, f"{each.score:.3f}", str(each.start), str(each.end)] for each in entities]


def _entity_fields(outputs: Mapping[str, Array]) -> dict[str, Any]:
    return {"entities": _as_dicts(calls.read_entities(outputs, 1)[0])}


def _answer_rows(outputs: Mapping[str, Array]) -> list[list[str]]:
    (answer,) = calls.read_answers(outputs, 1)
    return [[each.text, f"{each.score:.3f}", str(each.start), str(each.end)] for each in answer.candidates or [answer]]


def _answer_fields(outputs: Mapping[str, Array]) -> dict[str, Any]:
    (answer,) = calls.read_answers(outputs, 1)
    found = _as_dicts(answer.candidates)
    return {"answers": [{name: value for name, value in each.items() if name != "candidates"} for each in found]}


def _mask_rows(outputs: Mapping[str, Array]) -> list[list[str]]:
    (masks,) = calls.read_predictions(outputs, 1)
    return [[str(number), each.token, f"{each.score:.3f}"] for number, mask in enumerate(masks, 1) for each in mask]


def _mask_fields(outputs: Mapping[str, Array]) -> dict[str, Any]:
    return {"predictions": [_as_dicts(mask) for mask in calls.read_predictions(outputs, 1)[0]]}


def _sparse_rows(outputs: Mapping[str, Array]) -> list[list[str]]:
    (found,) = calls.read_sparse(outputs, 1)
    strongest = np.argsort(-found.weights, kind="stable")[:_SHOWN_TERMS]
    terms = ", ".join(f"{found.indices[term]}: {found.weights[term]:.3g}" for term in strongest)
    return [[str(len(found)), terms]]


def _sparse_fields(outputs: Mapping[str, Array]) -> dict[str, Any]:
    (found,) = calls.read_sparse(outputs, 1)
    return {"indices": found.indices.tolist(), "weights": found.weights.tolist()}


def _score_rows(outputs: Mapping[str, Array]) -> list[list[str]]:
    return [[f"{calls.read_scores(outputs, 1)[0]:.4f}"]]


def _score_fields(outputs: Mapping[str, Array]) -> dict[str, Any]:
    return {"score": calls.read_scores(outputs, 1)[0]}


def _as_dicts(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in values]


# Answers have scores too, so scores are last.
_KINDS = (
    ResponseKind(
        tuple(calls.EMBEDDING_OUTPUTS.values()),
        ("dimensions", "norm", "first values"),
        _embedding_rows,
        _embedding_fields,
    ),
    ResponseKind(("entities",), ("entity", "label", "score", "start", "end"), _entity_rows, _entity_fields),
    ResponseKind(("answers",), ("answer", "score", "start", "end"), _answer_rows, _answer_fields),
    ResponseKind(("predictions",), ("mask", "token", "score"), _mask_rows, _mask_fields),
    ResponseKind(("indices",), ("terms", "strongest terms: weights"), _sparse_rows, _sparse_fields),
    ResponseKind(("score",), ("score",), _score_rows, _score_fields),
)
