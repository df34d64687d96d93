"""Conversion between callers' values and tritonclient's, the same for all transports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype

from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter
from tidal_client.results import Array, Classification, ModelMetadata, TensorSpec

# Maximum number of rows per request that Tidal's models accept.
MAX_ROWS = 64
_NAMED = frozenset({"label", "logits", "probabilities", "max_length"})


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, independent of the protocol."""

    model: str
    inputs: Mapping[str, Array]
    #: Names of the outputs to request; None: all.
    outputs: Sequence[str] | None
    parameters: Mapping[str, Parameter]
    request_id: str

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidArgument("model: expected the name of a model, got an empty string")
        if isinstance(self.outputs, str):
            raise InvalidArgument(f"outputs: expected a list of names, got the string '{self.outputs}'")


def chunks(texts: Sequence[str], pairs: Sequence[str] | None) -> Iterator[dict[str, Array]]:
    """Yield the inputs of requests of up to `MAX_ROWS` texts.

    Args:
        texts: First texts.
        pairs: Second texts, one per text; None: no pairs.

    Raises:
        InvalidArgument: An argument is a string instead of a list, the numbers of texts and pairs differ, or a text is
            not valid Unicode.
    """
    for name, values in (("texts", texts), ("pairs", pairs)):
        if isinstance(values, str | bytes):
            raise InvalidArgument(f"{name}: expected a list of texts, got a single text")
    if pairs is not None and len(pairs) != len(texts):
        raise InvalidArgument(f"pairs: expected one per text ({len(texts)}), got {len(pairs)}")
    columns = {"text_input": _bytes("texts", texts)}
    if pairs is not None:
        columns["text_pair"] = _bytes("pairs", pairs)
    for start in range(0, len(texts), MAX_ROWS):
        yield {name: column[start : start + MAX_ROWS] for name, column in columns.items()}


def _bytes(name: str, texts: Sequence[str]) -> Array:
    column = np.empty((len(texts), 1), dtype=np.object_)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgument(f"{name}[{row}]: expected a text, got {type(text).__name__}")
        try:
            column[row, 0] = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{name}[{row}]: not valid Unicode: {error.reason}") from None
    return column


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


def infer_arguments(request: InferRequest, library: Any) -> dict[str, Any]:
    """Return keyword arguments for `infer` of tritonclient's `http` or `grpc` library.

    Args:
        request: Request to send.
        library: Module `tritonclient.http` or `tritonclient.grpc`: their classes differ, the names do not.

    Raises:
        InvalidArgument: Triton has no datatype for an array.
    """
    tensors = []
    for name, value in request.inputs.items():
        array = np.asarray(value)
        if array.dtype.kind == "U":
            array = array.astype(np.object_)
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise InvalidArgument(f"input '{name}': Triton has no datatype for numpy's {array.dtype}")
        tensor = library.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    outputs = request.outputs
    return {
        "model_name": request.model,
        "inputs": tensors,
        "outputs": None if outputs is None else [library.InferRequestedOutput(name) for name in outputs],
        "request_id": request.request_id,
        "parameters": dict(request.parameters),
    }


def read_outputs(result: Any) -> dict[str, Array]:
    """Return the arrays of a response by output name."""
    response = result.get_response()
    # HTTP responses are parsed JSON, gRPC responses are messages.
    names = [o["name"] for o in response.get("outputs", ())] if isinstance(response, dict) else None
    return {name: result.as_numpy(name) for name in names or [o.name for o in response.outputs]}


def read_classifications(outputs: Mapping[str, Array], rows: int) -> list[Classification]:
    """Split a response into one result per row.

    Args:
        outputs: Arrays of shape [rows, ...] by output name.
        rows: Number of rows of the request.
    """
    labels, lengths = outputs.get("label"), outputs.get("max_length")
    logits, probabilities = outputs.get("logits"), outputs.get("probabilities")
    return [
        Classification(
            label=None if labels is None else bytes(labels[row].item()).decode(),
            logits=None if logits is None else logits[row],
            probabilities=None if probabilities is None else probabilities[row],
            max_length=None if lengths is None else int(lengths[row].item()),
            other={name: value[row] for name, value in outputs.items() if name not in _NAMED},
        )
        for row in range(rows)
    ]


def read_metadata(metadata: Mapping[str, Any]) -> ModelMetadata:
    """Convert model metadata from either protocol's JSON (gRPC writes sizes as strings)."""

    def specs(key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(t["name"], t["datatype"], tuple(int(size) for size in t.get("shape", ())))
            for t in metadata.get(key, ())
        )

    return ModelMetadata(metadata["name"], tuple(metadata.get("versions", ())), specs("inputs"), specs("outputs"))
