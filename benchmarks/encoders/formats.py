"""How requests are sent to each kind of server and how its answers are read.

Each server is asked in its cheapest form that carries FP32: Tidal and the servers around OpenVINO answer in bytes,
infinity in base64.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.encoders.prepare import SPEC_TASKS, model_name
from benchmarks.encoders.source import Task
from benchmarks.encoders.workload import Rows
from tidal_client.load.payloads import encode
from tidal_client.transports.addresses import Address
from tidal_client.transports.http_messages import JSON_LENGTH, request_bytes, response_arrays

#: Embeddings or scores of rows, [rows, values].
Values = npt.NDArray[np.float64]
#: Makes the bytes of a request to `host:port`.
Encode = Callable[[str, Task, Rows], bytes]
_TIMEOUT_S = 60.0


def plain_request(location: str, task: Task, rows: Rows) -> bytes:
    """Return a request to one of the servers in `serving`."""
    return _json_request(location, "/encode", {"rows": [row if isinstance(row, str) else list(row) for row in rows]})


def read_plain(body: bytes, rows: int) -> Values:
    """Read the answer of one of the servers in `serving`.

    Args:
        body: Body of the response.
        rows: Number of rows of the request.
    """
    return np.frombuffer(body, np.float32).reshape(rows, -1).astype(np.float64)


def infinity_request(location: str, task: Task, rows: Rows) -> bytes:
    """Return a request to infinity."""
    model = {"model": "encoder"}
    if task == "embed":
        return _json_request(location, "/embeddings", {**model, "input": list(rows), "encoding_format": "base64"})
    query, documents = query_and_documents(rows)
    asked = {**model, "query": query, "documents": documents, "return_documents": False}
    return _json_request(location, "/rerank", asked)


def read_infinity(body: bytes, rows: int) -> Values:
    """Read an answer of infinity; scores are in the order of the request."""
    found = json.loads(body)
    if "data" in found:
        vectors = [np.frombuffer(base64.b64decode(each["embedding"]), np.float32) for each in found["data"]]
        return np.array(vectors, np.float64)
    scores = np.empty((rows, 1))
    for each in found["results"]:
        scores[each["index"]] = each["relevance_score"]
    return scores


def tidal_request(location: str, task: Task, rows: Rows, *, precision: str = "fp32", grpc: bool = False) -> bytes:
    """Return a request to Tidal: a complete HTTP request, or a gRPC message.

    Args:
        location: `host:port` of the server.
        task: Task of the model.
        rows: Rows of the request.
        precision: Precision of the model.
        grpc: Whether the request is sent over gRPC.
    """
    output = [SPEC_TASKS[task][1]]
    address = Address("grpc" if grpc else "http", location)
    return encode(address, model_name(task, precision), tidal_inputs(rows), output, {})


def tidal_inputs(rows: Rows) -> dict[str, npt.NDArray[np.object_]]:
    """Return the input arrays of rows, each [rows, 1]."""
    columns: Mapping[str, Sequence[str]]
    if isinstance(rows[0], str):
        columns = {"text_input": [str(row) for row in rows]}
    else:
        columns = {"text_input": [row[0] for row in rows], "text_pair": [row[1] for row in rows]}
    return {name: np.array([[each.encode()] for each in column], object) for name, column in columns.items()}


def query_and_documents(rows: Rows) -> tuple[str, list[str]]:
    """Return the query that all pairs share, and their documents.

    Raises:
        ValueError: The pairs have several queries.
    """
    queries = {row[0] for row in rows}
    if len(queries) != 1:
        raise ValueError(f"a request has one query, got {len(queries)}")
    return queries.pop(), [row[1] for row in rows]


def read_tidal(body: bytes, rows: int, json_length: str | None) -> Values:
    """Read an answer of Tidal over HTTP."""
    (array,) = response_arrays(body, json_length).values()
    return np.asarray(array, np.float64).reshape(rows, -1)


def ask(location: str, task: Task, rows: Rows, encode_request: Encode, read: Callable[[bytes, int], Values]) -> Values:
    """Send one request over HTTP and return the values of its answer, [rows, values].

    Args:
        location: `host:port` of the server.
        task: Task of the model.
        rows: Rows of the request.
        encode_request: Makes the request.
        read: Reads the answer.

    Raises:
        RuntimeError: The server answered with an error.
    """
    head, _, body = encode_request(location, task, rows).partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    request = urllib.request.Request(f"http://{location}{first.split()[1]}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            length = response.headers.get(JSON_LENGTH)
            content = response.read()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{location} answered {error.code}: {error.read()[:300]!r}") from error
    return read_tidal(content, len(rows), length) if length else read(content, len(rows))


def _json_request(location: str, path: str, content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    return request_bytes(location, path, body, "Content-Type: application/json")
