"""How a request reaches the server: HTTP and gRPC, each blocking and for asyncio, behind two small protocols."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from tidal_client.codec import InferRequest
from tidal_client.errors import InvalidArgument
from tidal_client.results import Array, ModelMetadata


class Transport(Protocol):
    """Blocking calls, from any thread. Each ends within `timeout_s` seconds and raises a `RequestError`."""

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """Arrays of the answer by output name."""

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """Arrays of each response of a decoupled model, each within `timeout_s` of the one before.

        Closing the iterator withdraws the request. Every request has a stream of its own: errors in one name none.
        """

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """Whether the model, or the server when None, takes requests."""

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """What the model takes and returns."""

    def close(self) -> None:
        """Close the connections."""


class AsyncTransport(Protocol):
    """The same for asyncio, within one event loop."""

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """Arrays of the answer by output name."""

    def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """Arrays of each response of a decoupled model; see `Transport.stream`."""

    async def ready(self, model: str | None, timeout_s: float) -> bool:
        """Whether the model, or the server when None, takes requests."""

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """What the model takes and returns."""

    async def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    protocol: Literal["http", "grpc"]
    #: ``host:port``
    location: str

    def connect(self) -> Transport:
        """A blocking transport; it connects at the first request."""
        # Each protocol's library takes a good part of a second to import, so only the one in use is.
        if self.protocol == "grpc":
            from tidal_client.transports.grpc import GrpcTransport

            return GrpcTransport(self.location)
        from tidal_client.transports.http import HttpTransport

        return HttpTransport(self.location)

    def connect_async(self) -> AsyncTransport:
        """A transport of the running event loop; it connects at the first request."""
        if self.protocol == "grpc":
            from tidal_client.transports.grpc import AsyncGrpcTransport

            return AsyncGrpcTransport(self.location)
        from tidal_client.transports.http import AsyncHttpTransport

        return AsyncHttpTransport(self.location)


def parse_url(url: str) -> Address:
    """The address in ``http://HOST:PORT`` or ``grpc://HOST:PORT``.

    Raises:
        InvalidArgument: anything else.
    """
    expected = f"url '{url}': expected http://HOST:PORT or grpc://HOST:PORT"
    if "://" not in url:
        raise InvalidArgument(f"{expected}; did you mean http://{url} or grpc://{url}?")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"{expected} ({error})") from None
    if parts.scheme in ("https", "grpcs"):
        raise InvalidArgument(f"{expected}; the client does not support TLS: connect to a port without it")
    if parts.scheme not in ("http", "grpc") or not host or not port:
        raise InvalidArgument(expected)
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise InvalidArgument(f"{expected}, nothing after the port")
    return Address("grpc" if parts.scheme == "grpc" else "http", parts.netloc)
