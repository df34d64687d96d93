"""Transports to the server: HTTP and gRPC, blocking and asyncio. Imported by the clients and the load generator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Protocol

from tidal_client.codec import InferRequest
from tidal_client.results import Array, ModelMetadata


class Transport(Protocol):
    """Blocking calls from any thread; each ends within `timeout_s` seconds and raises `RequestError`."""

    def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """Send a request and return the arrays of its response by output name."""

    def stream(self, request: InferRequest, timeout_s: float) -> Generator[dict[str, Array], None, None]:
        """Send a request to a decoupled model and yield the arrays of each response by output name.

        Each response arrives within `timeout_s` seconds of the previous one. Closing the iterator cancels the request.
        Every request has a separate stream, because errors in a stream do not name their request.
        """

    def ready(self, model: str | None, timeout_s: float) -> bool:
        """Whether a model, or with None the server, is ready to serve."""

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """Return a model's versions, inputs and outputs."""

    def max_rows(self, model: str, timeout_s: float) -> int:
        """Return the maximum number of rows of a request to a model; 1 if the model has no batch axis."""

    def close(self) -> None:
        """Close the connections."""


class AsyncTransport(Protocol):
    """Asyncio variant of `Transport`, for one event loop."""

    async def infer(self, request: InferRequest, timeout_s: float) -> dict[str, Array]:
        """Send a request and return the arrays of its response by output name."""

    def stream(self, request: InferRequest, timeout_s: float) -> AsyncGenerator[dict[str, Array], None]:
        """Send a request to a decoupled model and yield its responses; see `Transport.stream`."""

    async def ready(self, model: str | None, timeout_s: float) -> bool:
        """Whether a model, or with None the server, is ready to serve."""

    async def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """Return a model's versions, inputs and outputs."""

    async def max_rows(self, model: str, timeout_s: float) -> int:
        """Return the maximum number of rows of a request to a model; see `Transport.max_rows`."""

    async def close(self) -> None:
        """Close the connections."""
