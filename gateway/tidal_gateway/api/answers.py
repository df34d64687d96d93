"""Answers of the APIs: whole documents, or streams of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer.

    Attributes:
        content: Body.
        status: HTTP status.
        media_type: Content type.
        headers: Further headers.
    """

    content: bytes
    status: int = 200
    media_type: bytes = b"application/json"
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer as server-sent events; an error before the first event is answered with its own status.

    Attributes:
        events: Complete events, see `event`.
    """

    events: AsyncGenerator[bytes, None]


def json_answer(document: Any, status: int = 200) -> HttpAnswer:
    """Return a JSON document that may contain numpy arrays, as an answer."""
    return HttpAnswer(dump(document), status)


def dump(document: Any) -> bytes:
    """Return a JSON document that may contain numpy arrays."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def event(content: bytes) -> bytes:
    """Return a server-sent event."""
    return b"data: " + content + b"\n\n"


#: Last event of OpenAI's streams.
DONE = event(b"[DONE]")
