"""Tensors of KServe's v2 protocol over HTTP: JSON numbers or binary parts, to and from gRPC messages."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from tritonclient.utils import triton_to_np_dtype

from tidal_client.results import Array
from tidal_client.tensors import output_array
from tidal_gateway.api.answers import dump
from tidal_gateway.api.options import Body
from tidal_gateway.errors import invalid

_LENGTH: Final = struct.Struct("<I")
#: Header with the length of the JSON part, where binary parts follow.
JSON_LENGTH: Final = "inference-header-content-length"
_DATATYPES: Final = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "BF16", "FP32", "FP64", "BYTES"),
)
_MAX_DIMENSIONS: Final = 32


class TensorBody(BaseModel):
    """A tensor of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: StrictStr
    shape: list[StrictInt]
    datatype: StrictStr = Field(description=f"one of {', '.join(_DATATYPES)}")
    data: list[Any] | None = Field(None, description="values, flat or nested; absent with binary_data_size")
    parameters: dict[str, Any] | None = Field(None, description="binary_data_size: length of its binary part")


class OutputBody(BaseModel):
    """An output that is requested."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: StrictStr
    parameters: dict[str, Any] | None = Field(None, description="binary_data: whether it is sent as a binary part")


class InferBody(Body):
    """Body of `POST /v2/models/MODEL/infer`: its description, since `add_input` reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: StrictStr = ""
    inputs: list[TensorBody]
    outputs: list[OutputBody] | None = None
    parameters: dict[str, StrictStr | bool | int | float] | None = Field(None, description="options of Tidal's models")


def split_body(headers: Mapping[str, str], body: bytes) -> tuple[bytes, memoryview]:
    """Return the JSON part of a body, and the binary parts after it.

    Raises:
        Refusal: The header that has the length of the JSON part does not fit.
    """
    text = headers.get(JSON_LENGTH)
    if text is None:
        return body, memoryview(b"")
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) > len(body):
        raise invalid(f"header {JSON_LENGTH}: expected a number of bytes up to {len(body)}, got '{text[:40]}'")
    return body[: int(text)], memoryview(body)[int(text) :]


def add_input(message: Any, tensor: Any, binary: memoryview) -> memoryview:
    """Add an input to a `ModelInferRequest`, and return the binary parts after its own.

    Args:
        message: Message to add to.
        tensor: Input as parsed JSON.
        binary: Binary parts that are left.

    Raises:
        Refusal: The input is not accepted.
    """
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise invalid("field 'inputs': expected objects with name, shape, datatype and data", "inputs")
    name, datatype = tensor["name"], tensor.get("datatype")
    shape: Any = tensor.get("shape")
    shown = name[:80]
    if datatype not in _DATATYPES:
        kinds = ", ".join(_DATATYPES)
        raise invalid(f"input '{shown}': datatype is {str(datatype)[:40]!r}; accepted are {kinds}", "inputs")
    if not _is_shape(shape):
        raise invalid(f"input '{shown}': shape is {str(shape)[:80]}; expected a list of sizes from 0", "inputs")
    size = (tensor.get("parameters") or {}).get("binary_data_size")
    if size is None:
        content = _from_json(shown, datatype, shape, tensor.get("data"))
    else:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
            raise invalid(
                f"input '{shown}': binary_data_size is {str(size)[:40]}; {len(binary)} bytes are left", "inputs"
            )
        content, binary = bytes(binary[:size]), binary[size:]
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    message.raw_input_contents.append(content)
    return binary


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        return False
    return all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**31 for each in shape)


def _from_json(name: str, datatype: str, shape: list[int], data: Any) -> bytes:
    if datatype == "BF16":
        raise invalid(f"input '{name}': BF16 cannot be written as JSON; send it as a binary part", "inputs")
    values = _flat(data) if isinstance(data, list) else None
    if values is None or len(values) != math.prod(shape):
        count = "no list" if values is None else f"{len(values)} elements"
        raise invalid(f"input '{name}': data has {count}; the shape {shape} has {math.prod(shape)}", "inputs")
    if datatype == "BYTES":
        return _join_texts(name, values)
    if any(isinstance(each, str) or each is None for each in values):
        raise invalid(f"input '{name}': data has texts or null; expected numbers of type {datatype}", "inputs")
    try:
        array = np.array(values, object)
        if datatype == "BOOL" or not datatype.startswith(("FP",)):
            exact = array.astype(triton_to_np_dtype(datatype))
            if (exact.astype(object) != array).any():
                raise ValueError("an element is not of this type")
            return exact.tobytes()
        return array.astype(triton_to_np_dtype(datatype)).tobytes()
    except (ValueError, TypeError, OverflowError) as error:
        raise invalid(f"input '{name}': data is not of type {datatype}: {error}", "inputs") from None


def _flat(data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        if not all(isinstance(each, list) for each in data):
            return []
        data = [element for each in data for element in each]
    return data


def _join_texts(name: str, values: list[Any]) -> bytes:
    parts = []
    for value in values:
        if not isinstance(value, str):
            raise invalid(f"input '{name}': data has {str(value)[:40]!r}; expected texts", "inputs")
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise invalid(f"input '{name}': data has a text with a lone surrogate", "inputs") from None
        parts += [_LENGTH.pack(len(encoded)), encoded]
    return b"".join(parts)


def response_body(response: Any, binary: Mapping[str, bool], default_binary: bool) -> tuple[bytes, int | None]:
    """Return the body for a `ModelInferResponse`, and the length of its JSON part if binary parts follow.

    Args:
        response: Answer of the server.
        binary: Whether the client wants an output as a binary part, by output name.
        default_binary: The same for outputs that it did not name.
    """
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for tensor, content in zip(response.outputs, response.raw_output_contents, strict=True):
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if binary.get(tensor.name, default_binary) or tensor.datatype == "BF16":
            output["parameters"] = {"binary_data_size": len(content)}
            parts.append(content)
        else:
            output["data"] = json_data(output_array(tensor.datatype, tensor.shape, content))
        outputs.append(output)
    document: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    head = dump({**document, "outputs": outputs})
    return b"".join([head, *parts]), len(head) if parts else None


def json_data(array: Array) -> list[Any]:
    """Return the elements of an array as a flat list that JSON can have; texts must be UTF-8."""
    if array.dtype == object:
        return [bytes(each).decode("utf-8", "replace") for each in array.ravel()]
    found: list[Any] = array.ravel().tolist()
    return found
