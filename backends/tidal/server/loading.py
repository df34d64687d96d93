"""Loading a model over gRPC.

tritonserver runs a load in the thread that received it. Its HTTP endpoint distributes connections over few threads, so
a load over HTTP blocks inference of most HTTP clients until the model serves. Over gRPC it blocks no other client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tidal.errors import Internal, NotFound, Unavailable

# Proxies of the environment are for other machines.
NO_PROXY = (("grpc.enable_http_proxy", 0),)


def load_over_grpc(
    address: str, model: str, config: Mapping[str, Any] | None, metadata: Mapping[str, str], timeout_s: float
) -> None:
    """Load or reload a model and wait until it serves.

    Args:
        address: `host:port` of the gRPC endpoint.
        model: Name of the model.
        config: Complete config that replaces config.pbtxt; None for config.pbtxt.
        metadata: Metadata entries that the admin endpoints require.
        timeout_s: Longest time to wait, in seconds.

    Raises:
        NotFound: There is no such model.
        Unavailable: No server answers, or it requires its admin key.
        Internal: Triton's reason; the version that served before keeps serving.
    """
    request = service_pb2.RepositoryModelLoadRequest(model_name=model)
    if config is not None:
        request.parameters["config"].string_param = json.dumps(config)
    with grpc.insecure_channel(address, options=NO_PROXY) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            stub.RepositoryModelLoad(request, timeout=timeout_s, metadata=tuple(metadata.items()))
        except grpc.RpcError as error:
            raise _failure(address, error.code(), error.details() or "") from None


def _failure(address: str, code: grpc.StatusCode, details: str) -> Internal | NotFound | Unavailable:
    if code is grpc.StatusCode.UNAVAILABLE and "restricted" in details:
        return Unavailable(
            f"the server at {address} requires its admin key: set TIDAL_ADMIN_KEY, or run this as the user who started "
            "it"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and "load" not in details:
        return Unavailable(f"no server answers at {address}: {details}")
    return Internal(details)
