"""Refusals of requests to models with a full queue, before their bodies are checked, or read if the path has the name.

Under overload most requests are refused, and what a refusal takes is missing where the models compute.
"""

from __future__ import annotations

import orjson

from tidal_gateway.edge.exchange import Exchange
from tidal_gateway.keys.store import KeyEntry
from tidal_gateway.state import Gateway


def refuse_full(gateway: Gateway, exchange: Exchange, key: KeyEntry | None, name: str) -> None:
    """Refuse a request to a model that refused the last one before it, and still has too many outstanding requests.

    Requests that the key does not permit are not refused here: their error must not say that the model exists.

    Args:
        gateway: State of the worker.
        exchange: Log and metric fields of the request.
        key: API key; None where none is needed.
        name: Name of the model, or ``model/task``; empty if it is not known.

    Raises:
        Refusal: The model has too many outstanding requests.
    """
    model, _, task = name.partition("/")
    if model in gateway.pool.lanes.full and (key is None or key.allows(model, task)):
        exchange.model = model
        gateway.pool.lanes.check(model)


def named_model(body: bytes) -> str:
    """Return the field `model` of a JSON body; empty if there is none, or the body is not JSON."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    name = document.get("model") if isinstance(document, dict) else None
    return name if isinstance(name, str) else ""
