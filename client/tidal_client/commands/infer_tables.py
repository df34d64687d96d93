"""Tables and JSON objects of `tidal infer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from tidal_client.commands.infer_kinds import ResponseKind, batch_of_one, kind_of
from tidal_client.encoder_results import Ranked
from tidal_client.errors import RequestError
from tidal_client.results import Classification

# Longer text outputs are not shown in the table.
_MAX_LABEL_CHARS = 32


@dataclass(frozen=True, slots=True)
class InferQuery:
    """One text, pair of texts or image file to send."""

    text: str
    pair: str | None = None
    image: Path | None = None

    @property
    def shown(self) -> str:
        """Text that represents the query in the table."""
        if self.image is not None:
            return str(self.image)
        return self.text if self.pair is None else f"{self.text} | {self.pair}"


@dataclass(frozen=True, slots=True)
class InferResult:
    """A query with its result or error, and its latency."""

    query: InferQuery
    result: Classification | RequestError
    milliseconds: float


def answer_table(answers: Sequence[InferResult]) -> Table:
    """Return the table of results, which are of one kind; errors have no kind."""
    kinds = [kind for answer in answers if (kind := _kind(answer)) is not None]
    return _kind_table(kinds[0], answers) if kinds else _class_table(answers)


def answer_fields(answer: InferResult) -> dict[str, Any]:
    """Return the JSON object of a result."""
    query, result = answer.query, answer.result
    found: dict[str, Any] = (
        {"text": query.text, "pair": query.pair} if query.image is None else {"image": str(query.image)}
    )
    found["milliseconds"] = round(answer.milliseconds, 3)
    if isinstance(result, RequestError):
        return found | {"error": {"code": result.code, "message": str(result)}}
    if (kind := _kind(answer)) is not None:
        return found | kind.fields(batch_of_one(result)) | {"max_length": result.max_length}
    labels = {} if result.labels is None else {"labels": list(result.labels)}
    return found | {
        "label": result.label,
        **labels,
        "probabilities": None if result.probabilities is None else result.probabilities.tolist(),
        "logits": None if result.logits is None else result.logits.tolist(),
        "max_length": result.max_length,
        "outputs": {name: _plain(value) for name, value in result.other.items()},
    }


def ranked_table(query: str, ranked: Sequence[Ranked], milliseconds: float) -> Table:
    """Return the table of ranked documents.

    Args:
        query: Query that they were ranked for.
        ranked: Documents with scores, best first.
        milliseconds: Time of the call.
    """
    title = f"{escape(query)} ({milliseconds:.1f} ms)"
    table = Table("rank", "score", "index", "document", title=title, title_justify="left")
    for column in table.columns[:3]:
        column.justify = "right"
    for rank, each in enumerate(ranked, 1):
        table.add_row(str(rank), f"{each.score:.4f}", str(each.index), escape(each.document))
    return table


def ranked_fields(ranked: Ranked) -> dict[str, Any]:
    """Return the JSON object of a ranked document."""
    return {"document": ranked.document, "index": ranked.index, "score": ranked.score}


def _kind(answer: InferResult) -> ResponseKind | None:
    return None if isinstance(answer.result, RequestError) else kind_of(answer.result)


def _kind_table(kind: ResponseKind, answers: Sequence[InferResult]) -> Table:
    """Return a table with the rows of each result; the text and the latency are in the first."""
    table = Table("text", *kind.columns)
    table.add_column("ms", justify="right", no_wrap=True)
    for answer in answers:
        rows = [[f"[red]{answer.result.code}[/red]"]] if isinstance(answer.result, RequestError) else [[]]
        if _kind(answer) is kind and not isinstance(answer.result, RequestError):
            rows = [[escape(cell) for cell in cells] for cells in kind.rows(batch_of_one(answer.result))] or [[]]
        for number, cells in enumerate(rows):
            padded = [*cells, *[""] * (len(kind.columns) - len(cells))]
            shown, took = ("", "") if number else (escape(answer.query.shown), f"{answer.milliseconds:.1f}")
            table.add_row(shown, *padded, took)
    return table


def _class_table(answers: Sequence[InferResult]) -> Table:
    """Return a table with one row per result, with columns only for outputs that occur."""
    images = any(answer.query.image is not None for answer in answers)
    table = Table("image" if images else "text", "label")
    given = dict.fromkeys(name for answer in answers for name in _further_labels(answer))
    several = any(_labels(answer) is not None for answer in answers)
    choices = [name for name in ("level", "gamma", *given) if any(_choice(answer, name) for answer in answers)]
    for numeric in ("probability", *([] if images else ["max_length"]), "ms", *choices):
        table.add_column(numeric, justify="right", no_wrap=True)
    if several:
        table.add_column("labels")
    for answer in answers:
        *cells, length, milliseconds = _as_row(answer)
        lengths = [] if images else [length]
        given_labels = [_labels(answer) or ""] if several else []
        table.add_row(*cells, *lengths, milliseconds, *(_choice(answer, name) for name in choices), *given_labels)
    return table


def _labels(answer: InferResult) -> str | None:
    """Return the labels of a multi-label model as text; None if the model does not return them."""
    labels = None if isinstance(answer.result, RequestError) else answer.result.labels
    return None if labels is None else escape(", ".join(labels))


def _choice(answer: InferResult, name: str) -> str:
    """Return an output of one value as text; empty if the model does not return it."""
    value = None if isinstance(answer.result, RequestError) else answer.result.other.get(name)
    return "" if value is None else escape(str(_plain(value.reshape(-1))[0]))


def _further_labels(answer: InferResult) -> list[str]:
    """Return the names of further outputs that are one short text each."""
    if isinstance(answer.result, RequestError):
        return []
    texts = [name for name, value in answer.result.other.items() if value.dtype == np.object_ and value.size == 1]
    return [name for name in texts if len(_choice(answer, name)) <= _MAX_LABEL_CHARS]


def _label(result: Classification) -> str:
    """Return the label, or the value of a regression."""
    value = result.other.get("value")
    return (result.label or "") if value is None else f"{value.item():.4g}"


def _as_row(answer: InferResult) -> list[str]:
    shown = answer.query.shown
    milliseconds = f"{answer.milliseconds:.1f}"
    if isinstance(answer.result, RequestError):
        return [escape(shown), f"[red]{answer.result.code}[/red]", "", "", milliseconds]
    result, top = answer.result, answer.result.top_probability
    return [
        escape(shown),
        escape(_label(result)),
        "" if top is None else f"{top:.3f}",
        "" if result.max_length is None else str(result.max_length),
        milliseconds,
    ]


def _plain(value: np.ndarray[Any, Any]) -> Any:
    """Return an array as nested lists for JSON."""
    if value.dtype == np.object_:
        return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value.reshape(-1)]
    return value.tolist()
