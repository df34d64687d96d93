"""Requests as bytes."""

from __future__ import annotations

import json

DOCUMENT = json.dumps({"model": "intent", "input": "hi"}).encode()


def post(body: bytes = DOCUMENT, *headers: bytes) -> bytes:
    lines = [b"POST /v1/classify HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
