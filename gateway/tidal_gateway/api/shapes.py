"""Error documents: each API has its own shape, and all have Tidal's sentence in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidal_gateway.api.answers import HttpAnswer, dump, event
from tidal_gateway.errors import Refusal

#: Writes the document of a refusal, and the status that the API uses for it.
Shape = Callable[[Refusal], tuple[int, dict[str, Any]]]

_OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
_TEI_TYPES: Final = {429: "Overloaded", 503: "Unhealthy"}


def openai(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """OpenAI's shape."""
    kind = _OPENAI_TYPES.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return refusal.status, {"error": error}


def rerank(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Cohere's shape (`message`) and Jina's (`detail`)."""
    return refusal.status, {"message": refusal.message, "detail": refusal.message}


def tei(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The shape of text-embeddings-inference, which answers 422 to invalid requests."""
    status = 422 if refusal.status == 400 else refusal.status
    kind = _TEI_TYPES.get(refusal.status, "Backend" if refusal.status >= 500 else "Validation")
    return status, {"error": refusal.message, "error_type": kind}


def kserve(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """KServe's shape."""
    return refusal.status, {"error": refusal.message}


def error_answer(refusal: Refusal, shape: Shape) -> HttpAnswer:
    """Return the answer for a refusal."""
    status, document = shape(refusal)
    return HttpAnswer(dump(document), status, headers=refusal.headers())


def error_event(refusal: Refusal, shape: Shape) -> bytes:
    """Return the event that ends a stream which had begun."""
    return event(dump(shape(refusal)[1]))
