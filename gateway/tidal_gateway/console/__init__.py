"""The files of the console's page, as they are served."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Final

_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        content: Content.
        media_type: Content type.
        etag: Value of the header `etag`.
    """

    content: bytes
    media_type: bytes
    etag: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all files by name."""
    found = {}
    for each in files(__name__).joinpath("static").iterdir():
        kind = _TYPES.get(PurePath(each.name).suffix)
        if kind is not None:
            content = each.read_bytes()
            found[each.name] = Asset(content, kind, b'"%s"' % hashlib.sha256(content).hexdigest()[:16].encode())
    return found
