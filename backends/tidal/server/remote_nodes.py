"""Instances of a partitioned model on the servers of other nodes, read without an admin key."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tidal.errors import InvalidArgument, NotFound, Unavailable
from tidal.repository.cluster_table import NodeTls
from tidal.repository.config import instance_count
from tidal.repository.names import runtime_model
from tidal.server.loading import NO_PROXY
from tidal.server.local_http import open_url

_TIMEOUT_S = 5.0
_NOT_SERVED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True)
class NodeReader:
    """Reads what the server of a node serves.

    Attributes:
        name: Name of the node.
        address: `host:port` of its gRPC endpoint.
        tls: TLS of the connection; None for a connection without TLS.
        http: `host:port` of its HTTP endpoint; None if queries use gRPC.
    """

    name: str
    address: str
    tls: NodeTls | None = None
    http: str | None = None

    def instances(self, model: str, version: int, lengths: tuple[int, ...]) -> dict[int, int]:
        """Return the node's instances of a model's runtimes by max_length; 0 where a runtime is not loaded.

        Args:
            model: Name of the partitioned model.
            version: Version that the node has to serve.
            lengths: The runtimes' `max_length` in tokens, ascending.

        Raises:
            NotFound: The node does not serve this version of the model, or no runtime of it.
            Unavailable: The node does not answer, or not at `http`.
            InvalidArgument: A file of `tls` cannot be read.
        """
        with self._channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            config = self._config(stub, model, version)
            if config is None:
                raise NotFound(
                    f"node '{self.name}' at {self.address} does not serve version {version} of '{model}': publish that "
                    f"version to it, for example with tidal cluster publish and fetch"
                )
            configs = {length: self._config(stub, runtime_model(model, length), version) for length in lengths}
        counts = {length: 0 if each is None else instance_count(each) for length, each in configs.items()}
        if not any(counts.values()):
            raise NotFound(f"node '{self.name}' at {self.address} has no runtime of '{model}' loaded")
        if self.http is not None:
            served = next(length for length, count in counts.items() if count)
            self._check_http(self.http, runtime_model(model, served), version)
        return counts

    def _check_http(self, address: str, model: str, version: int) -> None:
        """Check that the server's HTTP endpoint has a version of a model.

        Raises:
            Unavailable: It has not, or is no endpoint of Triton.
        """
        try:
            # The endpoint of the metrics answers every path with 200.
            with open_url(f"http://{address}/v2/models/{model}/versions/{version}", _TIMEOUT_S) as response:
                problem = None if _names(response.read(), model) else "the answer is not Triton's"
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        if problem is not None:
            raise Unavailable(
                f"node '{self.name}' does not serve '{model}' over HTTP at {address}: {problem}; http= is the address "
                f"of its server's HTTP endpoint"
            )

    def _config(self, stub: Any, model: str, version: int) -> Mapping[str, Any] | None:
        """Return the active config of a version; None where it does not serve."""
        request = service_pb2.ModelConfigRequest(name=model, version=str(version))
        try:
            answer = stub.ModelConfig(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            details = error.details() or ""
            if error.code() in _NOT_SERVED or (error.code() is grpc.StatusCode.UNAVAILABLE and model in details):
                return None
            raise Unavailable(f"node '{self.name}' does not answer at {self.address}: {details}") from None
        config: Mapping[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return config

    def _channel(self) -> grpc.Channel:
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=NO_PROXY)
        files = [_content(path) for path in (self.tls.ca, self.tls.key, self.tls.certificate)]
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(*files), options=NO_PROXY)


def _names(metadata: bytes, model: str) -> bool:
    """Whether a text is the metadata of a model."""
    try:
        return bool(json.loads(metadata)["name"] == model)
    except (ValueError, KeyError, TypeError):
        return False


def _content(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
