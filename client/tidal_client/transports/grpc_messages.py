"""Triton's gRPC messages of requests and responses. Imported by the gRPC transport and the load generator."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as messages

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array, ModelMetadata, TensorSpec
from tidal_client.tensors import input_tensors, output_array


def infer_message(request: InferRequest) -> Any:
    """Return the `ModelInferRequest` of a request.

    Raises:
        InvalidArgument: Triton has no datatype for an array, or gRPC cannot represent a value.
    """
    try:
        message = messages.ModelInferRequest(model_name=request.model, id=request.request_id)
        for tensor in input_tensors(request.inputs):
            message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            message.raw_input_contents.append(tensor.content)
        for name in request.outputs or ():
            message.outputs.add(name=name)
        for name, value in request.parameters.items():
            _set(message.parameters[name], value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"gRPC cannot represent the request: {error}") from None
    return message


def _set(parameter: Any, value: object) -> None:
    if isinstance(value, str):
        parameter.string_param = value
    elif isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    else:
        parameter.double_param = value


def response_arrays(response: Any) -> dict[str, Array]:
    """Return the arrays of a `ModelInferResponse` by output name."""
    return {
        output.name: output_array(output.datatype, output.shape, content)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def is_last(response: Any) -> bool:
    """Whether a `ModelInferResponse` is the last one of its stream."""
    return "triton_final_response" in response.parameters and bool(
        response.parameters["triton_final_response"].bool_param
    )


def response_metadata(response: Any) -> ModelMetadata:
    """Convert a `ModelMetadataResponse`."""

    def specs(tensors: Any) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(each.name, each.datatype, tuple(each.shape)) for each in tensors)

    return ModelMetadata(response.name, tuple(response.versions), specs(response.inputs), specs(response.outputs))
