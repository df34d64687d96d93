"""Sentences of errors, in the shape of each API."""

from __future__ import annotations

from typing import Any


def sentence(path: str, document: Any) -> str:
    """The sentence of an error, from the shape of the path's API, which has to be complete."""
    if path.endswith("/rerank") and path != "/rerank":
        assert document.keys() == {"message", "detail"}
        return str(document["message"])
    if path in ("/embed", "/rerank", "/predict"):
        assert document.keys() == {"error", "error_type"}
        return str(document["error"])
    if path.startswith("/v2"):
        assert document.keys() == {"error"}
        assert isinstance(document["error"], str)
        return document["error"]
    assert document["error"].keys() == {"message", "type", "param", "code"}
    return str(document["error"]["message"])
