"""Conversion between callers' values and arrays, the same for all transports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter, request_parameters
from tidal_client.results import Array, Classification

_NAMED = frozenset({"label", "labels", "logits", "probabilities", "max_length"})


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, independent of the protocol."""

    model: str
    inputs: Mapping[str, Array]
    #: Names of the outputs to request; None: all.
    outputs: Sequence[str] | None
    parameters: Mapping[str, Parameter]
    request_id: str = ""
    #: Timeout of the call in seconds; None: the client's.
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidArgument("model: expected the name of a model, got an empty string")
        if isinstance(self.outputs, str):
            raise InvalidArgument(f"outputs: expected a list of names, got the string '{self.outputs}'")


def infer_request(
    model: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None,
    options: Mapping[str, Any],
    parameters: Mapping[str, Parameter] | None = None,
) -> InferRequest:
    """Return the request of a call.

    Args:
        model: Name of the model.
        inputs: Arrays by input name.
        outputs: Names of the outputs to request; None: all.
        options: Keyword arguments of the call, see `tidal_client.options.CallOptions`.
        parameters: Further Triton request parameters; None: no others.

    Raises:
        TypeError: A name is not a keyword argument.
        InvalidArgument: The model has no name, or an option has a wrong type.
    """
    options = dict(options)
    request_id, timeout_s = options.pop("request_id", ""), options.pop("timeout_s", None)
    return InferRequest(
        model, inputs, outputs, request_parameters(options) | dict(parameters or {}), request_id, timeout_s
    )


def text_columns(texts: Sequence[str], pairs: Sequence[str] | None = None) -> dict[str, Array]:
    """Return texts as inputs of shape [rows, 1].

    Args:
        texts: First texts.
        pairs: Second texts, one per text; None: no pairs.

    Raises:
        InvalidArgument: An argument is a string instead of a list, the numbers of texts and pairs differ, or a text is
            not valid Unicode.
    """
    columns = {"text_input": text_column("texts", texts)}
    if pairs is None:
        return columns
    columns["text_pair"] = text_column("pairs", pairs)
    if len(pairs) != len(texts):
        raise InvalidArgument(f"pairs: expected one per text ({len(texts)}), got {len(pairs)}")
    return columns


def text_column(name: str, texts: Sequence[str]) -> Array:
    """Return texts as an input of shape [rows, 1].

    Args:
        name: Name of the caller's argument, for errors.
        texts: Texts to send.

    Raises:
        InvalidArgument: The argument is a single text, or one of the texts is not a text or not valid Unicode.
    """
    if isinstance(texts, str | bytes):
        raise InvalidArgument(f"{name}: expected a list of texts, got a single text")
    column = np.empty((len(texts), 1), dtype=np.object_)
    for row, text in enumerate(texts):
        column[row, 0] = encoded(f"{name}[{row}]", text)
    return column


def encoded(name: str, text: str) -> bytes:
    """Return a text as UTF-8.

    Args:
        name: Name of the caller's argument, for errors.
        text: Text to send.

    Raises:
        InvalidArgument: It is not a text, or not valid Unicode.
    """
    if not isinstance(text, str):
        hint = "; decode it first" if isinstance(text, bytes) else ""
        raise InvalidArgument(f"{name}: expected a text, got {type(text).__name__}{hint}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name}: not valid Unicode: {error.reason}") from None


def image_inputs(image: bytes) -> dict[str, Array]:
    """Return the inputs of a request for one encoded image.

    Raises:
        InvalidArgument: The image is not `bytes`.
    """
    if not isinstance(image, bytes):
        raise InvalidArgument(f"image: expected the bytes of a file, got {type(image).__name__}")
    column = np.empty((1, 1), dtype=np.object_)
    column[0, 0] = image
    return {"image": column}


def read_classifications(outputs: Mapping[str, Array], rows: int) -> list[Classification]:
    """Split a response into one result per row.

    Args:
        outputs: Arrays of shape [rows, ...] by output name.
        rows: Number of rows of the request.
    """
    label, labels, lengths = outputs.get("label"), outputs.get("labels"), outputs.get("max_length")
    logits, probabilities = outputs.get("logits"), outputs.get("probabilities")
    return [
        Classification(
            label=None if label is None else bytes(label[row].item()).decode(),
            labels=None if labels is None else tuple(json.loads(labels[row].item())),
            logits=None if logits is None else logits[row],
            probabilities=None if probabilities is None else probabilities[row],
            max_length=None if lengths is None else int(lengths[row].item()),
            other={name: value[row] for name, value in outputs.items() if name not in _NAMED},
        )
        for row in range(rows)
    ]
