"""Requests and responses compared with those of tritonclient, for all datatypes, shapes and options."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc._utils
import tritonclient.http
import tritonclient.http._utils
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import np_to_triton_dtype

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.tensors import input_tensors, output_array
from tidal_client.transports import grpc_messages, http_messages
from tidal_client.transports.http_messages import JSON_LENGTH

_NUMBERS = [
    *(np.dtype(each) for each in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")),
    np.dtype(ml_dtypes.bfloat16),
]
_SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
_TEXTS = st.text() | st.binary() | st.integers()
_NAMES = st.text(min_size=1, max_size=12)


@st.composite
def _arrays(draw: st.DrawFn) -> Any:
    shape = draw(_SHAPES)
    dtype = draw(st.sampled_from([*_NUMBERS, np.dtype("O"), np.dtype("S5")]))
    if dtype.kind == "O":
        values = draw(st.lists(_TEXTS, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        array = np.empty(len(values), object)
        array[:] = values
        array = array.reshape(shape)
    else:
        size = dtype.itemsize * int(np.prod(shape))
        content = draw(st.binary(min_size=size, max_size=size))
        if dtype.kind == "b":
            content = bytes(byte % 2 for byte in content)
        array = np.frombuffer(content, dtype).reshape(shape) if size else np.empty(shape, dtype)
    # Views are not contiguous; their elements are sent in row-major order.
    return array.T if draw(st.booleans()) else array


_PARAMETERS = st.dictionaries(
    st.sampled_from(["task", "latency_ms", "max_level", "seed", "early_stopping", "stop", "ü"]),
    st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
)
_REQUESTS = st.builds(
    InferRequest,
    model=_NAMES,
    inputs=st.dictionaries(_NAMES, _arrays(), min_size=1, max_size=3),
    outputs=st.none() | st.lists(_NAMES, max_size=3),
    parameters=_PARAMETERS,
    request_id=st.text(),
)


def _expected(request: InferRequest, library: Any) -> Any:
    """Return the request as tritonclient builds it: a gRPC message, or an HTTP body and the length of its JSON."""
    inputs = []
    for name, array in request.inputs.items():
        tensor = library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    outputs = None if request.outputs is None else [library.InferRequestedOutput(each) for each in request.outputs]
    fixed = {"sequence_id": 0, "sequence_start": False, "sequence_end": False, "priority": 0, "timeout": None}
    named = {"inputs": inputs, "outputs": outputs, "request_id": request.request_id, **fixed}
    if library is tritonclient.grpc:
        return library._utils._get_inference_request(
            model_name=request.model, model_version="", parameters=request.parameters, **named
        )
    return library._utils._get_inference_request(custom_parameters=request.parameters, **named)


@given(_REQUESTS)
def test_grpc_requests_are_equal(request: InferRequest) -> None:
    assert grpc_messages.infer_message(request) == _expected(request, tritonclient.grpc)


@given(_REQUESTS)
def test_http_requests_are_equal(request: InferRequest) -> None:
    (body, length), (expected, expected_length) = (
        http_messages.infer_body(request),
        _expected(request, tritonclient.http),
    )
    head, expected_head = json.loads(body[:length]), json.loads(expected[:expected_length])
    expected_head.setdefault("parameters", {})
    assert head == expected_head
    assert body[length:] == expected[expected_length:]


@given(st.dictionaries(_NAMES, _arrays(), min_size=1, max_size=3))
def test_responses_are_read_alike(outputs: dict[str, Any]) -> None:
    tensors = list(input_tensors(outputs))
    message = messages.ModelInferResponse()
    described = []
    for tensor in tensors:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(tensor.content)
        size = {"binary_data_size": len(tensor.content)}
        described.append({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "parameters": size})
    head = json.dumps({"outputs": described}).encode()
    body = head + b"".join(tensor.content for tensor in tensors)
    http_result = tritonclient.http.InferResult.from_response_body(body, header_length=len(head))
    for found, result in (
        (grpc_messages.response_arrays(message), tritonclient.grpc.InferResult(message)),
        (http_messages.response_arrays(body, str(len(head))), http_result),
    ):
        assert list(found) == list(outputs)
        for name, array in found.items():
            expected = result.as_numpy(name)
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert (
                array.tobytes() == expected.tobytes() if array.dtype != object else array.tolist() == expected.tolist()
            )


def test_an_image_arrives_unchanged() -> None:
    pixels = np.arange(2 * 3 * 224 * 224, dtype=np.uint8).reshape(2, 224, 224, 3)
    (tensor,) = input_tensors({"pixels": pixels})
    assert (tensor.datatype, tensor.shape) == ("UINT8", pixels.shape)
    np.testing.assert_array_equal(output_array(tensor.datatype, tensor.shape, tensor.content), pixels)


def test_outputs_in_json_become_arrays() -> None:
    outputs = [
        {"name": "label", "datatype": "BYTES", "shape": [1, 2], "data": ["ä", "b"]},
        {"name": "logits", "datatype": "FP32", "shape": [1, 2], "data": [0.5, -1]},
    ]
    found = http_messages.response_arrays(json.dumps({"outputs": outputs}).encode(), None)
    assert found["label"].tolist() == [["ä".encode(), b"b"]]
    assert found["logits"].dtype == np.float32
    assert found["logits"].tolist() == [[0.5, -1.0]]
    assert JSON_LENGTH == "Inference-Header-Content-Length"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_texts_that_are_not_unicode_are_refused_by_name(protocol: str) -> None:
    request = InferRequest("m", {"x": np.array(["\ud800"], object)}, None, {}, "")
    build: Any = grpc_messages.infer_message if protocol == "grpc" else http_messages.infer_body
    with pytest.raises(InvalidArgument, match="input 'x': not valid Unicode"):
        build(request)


def test_a_number_that_grpc_cannot_represent_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="gRPC cannot represent the request"):
        grpc_messages.infer_message(InferRequest("m", {}, None, {"seed": 2**64}, ""))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "no such model"}', "no such model"),
        (b'data: {"error": "too long"}\n\n', "too long"),
        (b"<h1>502 Bad Gateway</h1>", "<h1>502 Bad Gateway</h1>"),
        (b"", ""),
        (b"x" * 5000, "x" * 1000),
    ],
)
def test_messages_of_error_responses(body: bytes, message: str) -> None:
    assert http_messages.error_message(body) == message
