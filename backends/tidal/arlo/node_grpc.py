"""Calls of another node's server over gRPC, with TLS where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc.service_pb2 import ServerLiveRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tidal.arlo.node_channel import CallFailed
from tidal.errors import InvalidArgument
from tidal.repository.cluster_table import RemoteNode
from tidal.requests import Array
from tidal_client.codec import InferRequest
from tidal_client.transports.grpc_messages import infer_message, response_arrays

# gRPC waits up to two minutes before it connects again to a server that was away.
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Otherwise all channels of a process to one address share their connection, and with it its failures.
    ("grpc.use_local_subchannel_pool", 1),
    # Proxies of the environment are for other machines.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class GrpcNodeChannel:
    """See `tidal.arlo.node_channel.NodeChannel`.

    Args:
        name: Name of the node.
        node: Its address.

    Raises:
        InvalidArgument: A file of its TLS settings cannot be read.
    """

    def __init__(self, name: str, node: RemoteNode) -> None:
        self._channel = _channel(name, node)
        self._stub = GRPCInferenceServiceStub(self._channel)

    def infer(self, request: InferRequest, version: int, timeout_s: float) -> dict[str, Array]:
        """See `NodeChannel.infer`."""
        message = infer_message(request)
        message.model_version = str(version)
        arrays: dict[str, Array] = response_arrays(self._call(self._stub.ModelInfer, message, timeout_s))
        return arrays

    def start(self, request: InferRequest, version: int, timeout_s: float) -> None:
        """See `NodeChannel.start`; gRPC sends on other threads, and connects when it likes."""

    def live(self, timeout_s: float) -> bool:
        """See `NodeChannel.live`."""
        return bool(self._call(self._stub.ServerLive, ServerLiveRequest(), timeout_s).live)

    def close_idle(self) -> None:
        """See `NodeChannel.close_idle`; gRPC notices itself."""

    def close(self) -> None:
        """See `NodeChannel.close`."""
        self._channel.close()

    @staticmethod
    def _call(method: Any, message: Any, timeout_s: float) -> Any:
        try:
            return method(message, timeout=timeout_s)
        except grpc.RpcError as error:
            code = error.code()
            raise CallFailed(
                str(error.details()),
                timed_out=code is grpc.StatusCode.DEADLINE_EXCEEDED,
                unreachable=code in _UNREACHABLE,
            ) from None
        except ValueError as error:  # the channel was closed
            raise CallFailed(str(error), unreachable=True) from None


def _channel(name: str, node: RemoteNode) -> grpc.Channel:
    """Return a channel to a node's server."""
    if node.tls is None:
        return grpc.insecure_channel(node.grpc, options=_CHANNEL)
    contents: list[bytes | None] = []
    for file in (node.tls.ca, node.tls.key, node.tls.certificate):
        try:
            contents.append(None if file is None else Path(file).read_bytes())
        except OSError as error:
            raise InvalidArgument(f"nodes.{name}.tls: {file} cannot be read: {error.strerror}") from None
    return grpc.secure_channel(node.grpc, grpc.ssl_channel_credentials(*contents), options=_CHANNEL)
