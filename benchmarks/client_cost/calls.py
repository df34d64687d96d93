"""The same call with Tidal's clients and with plain tritonclient: text in, one option, all outputs as arrays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from tidal_client import AsyncClient, Client

MODEL = "model"
TEXT = "book a table for two people at the harbour tomorrow at eight in the evening"
LATENCY_MS = 50.0
OUTPUTS = ("label", "logits", "probabilities", "max_length")
SYSTEMS = ("tidal_client", "tritonclient")

_BLOCKING = {"grpc": tritonclient.grpc, "http": tritonclient.http}
_ASYNCIO = {"grpc": tritonclient.grpc.aio, "http": tritonclient.http.aio}

Call = Callable[[], Any]
AsyncCall = Callable[[], Awaitable[Any]]


def _inputs(library: Any) -> list[Any]:
    text = np.array([[TEXT.encode()]], object)
    return [library.InferInput("text_input", text.shape, "BYTES").set_data_from_numpy(text)]


def _arrays(result: Any) -> list[Any]:
    return [result.as_numpy(name) for name in OUTPUTS]


@contextmanager
def blocking(system: str, protocol: str, location: str) -> Iterator[Call]:
    """Open a blocking client and yield a function that makes one call.

    Args:
        system: One of `SYSTEMS`.
        protocol: `grpc` or `http`.
        location: ``host:port`` of the server.
    """
    if system == "tidal_client":
        with Client(f"{protocol}://{location}") as client:
            yield lambda: client.classify(MODEL, TEXT, latency_ms=LATENCY_MS)
        return
    library = _BLOCKING[protocol]
    with library.InferenceServerClient(location) as bare:
        yield lambda: _arrays(bare.infer(MODEL, _inputs(library), parameters={"latency_ms": LATENCY_MS}))


@asynccontextmanager
async def with_asyncio(system: str, protocol: str, location: str) -> AsyncIterator[AsyncCall]:
    """Asyncio variant of `blocking`."""
    if system == "tidal_client":
        async with AsyncClient(f"{protocol}://{location}") as client:
            yield lambda: client.classify(MODEL, TEXT, latency_ms=LATENCY_MS)
        return
    async with _ASYNCIO[protocol].InferenceServerClient(location) as bare:

        async def call() -> Any:
            inputs = _inputs(_BLOCKING[protocol])
            return _arrays(await bare.infer(MODEL, inputs, parameters={"latency_ms": LATENCY_MS}))

        yield call
