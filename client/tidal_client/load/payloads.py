"""Requests serialised before a run, so that sending one is cheap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidal_client.codec import InferRequest
from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_client.transports.addresses import Address
from tidal_client.transports.http_messages import JSON_LENGTH, infer_body, model_path, request_bytes


def encode(
    address: Address,
    model: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None,
    parameters: Mapping[str, Parameter],
) -> bytes:
    """Serialise a request: a complete HTTP request, or a gRPC message.

    Args:
        address: Address of the server; determines the protocol.
        model: Name of the model.
        inputs: Arrays by input name.
        outputs: Names of the outputs to request; None: all.
        parameters: Options as Triton request parameters.

    Raises:
        InvalidArgument: The model's name is empty, or Triton has no datatype for an array.
    """
    request = InferRequest(model, inputs, outputs, parameters, "")
    if address.protocol == "grpc":
        from tidal_client.transports.grpc_messages import infer_message

        return bytes(infer_message(request).SerializeToString())
    body, json_length = infer_body(request)
    return request_bytes(address.location, model_path(model, "/infer"), body, f"{JSON_LENGTH}: {json_length}")
