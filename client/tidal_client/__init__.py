"""Python client for Tidal's models on Triton, over HTTP and gRPC. Imports neither `tidal` nor `tidal_builders`.

    from tidal_client import Client

    with Client("grpc://127.0.0.1:8001") as client:
        print(client.classify("intent", "book a table for two", latency_ms=50).label)

Names are imported on first use, so that the `tidal` command starts without the library's dependencies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidal_client.aio import AsyncClient
    from tidal_client.client import Client
    from tidal_client.encoder_results import Answer, Embeddings, Entity, MaskPrediction, Ranked, SparseEmbedding
    from tidal_client.errors import (
        Cancelled,
        ConnectionFailed,
        DeadlineExceeded,
        InvalidArgument,
        NotFound,
        RequestError,
        ServerError,
        Unavailable,
        Unsupported,
    )
    from tidal_client.options import CallOptions, Options
    from tidal_client.results import Classification, Generated, ModelMetadata, TensorSpec

_MODULES = {
    "AsyncClient": "aio",
    "Client": "client",
    "Answer": "encoder_results",
    "Embeddings": "encoder_results",
    "Entity": "encoder_results",
    "MaskPrediction": "encoder_results",
    "Ranked": "encoder_results",
    "SparseEmbedding": "encoder_results",
    "Cancelled": "errors",
    "ConnectionFailed": "errors",
    "DeadlineExceeded": "errors",
    "InvalidArgument": "errors",
    "NotFound": "errors",
    "RequestError": "errors",
    "ServerError": "errors",
    "Unavailable": "errors",
    "Unsupported": "errors",
    "CallOptions": "options",
    "Options": "options",
    "Classification": "results",
    "Generated": "results",
    "ModelMetadata": "results",
    "TensorSpec": "results",
}

__all__ = [
    "Answer",
    "AsyncClient",
    "CallOptions",
    "Cancelled",
    "Classification",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Embeddings",
    "Entity",
    "Generated",
    "InvalidArgument",
    "MaskPrediction",
    "ModelMetadata",
    "NotFound",
    "Options",
    "Ranked",
    "RequestError",
    "ServerError",
    "SparseEmbedding",
    "TensorSpec",
    "Unavailable",
    "Unsupported",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
