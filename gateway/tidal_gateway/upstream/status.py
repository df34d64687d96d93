"""The report of a server's `tidal serve`: which models it is restarting, and how often it has."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_ANSWER_S: Final = 1.0
_MAX_BYTES: Final = 16 << 20
# Proxies of the environment are for other addresses.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What `GET /ready` of the status endpoint reports.

    Attributes:
        state: State of `tidal serve`: ``starting``, ``serving``, ``restarting`` or ``ending``; empty if unknown.
        server_restarts: Number of restarts of tritonserver.
        model_restarts: Number of restarts by model.
        not_ready: Models that do not answer.
    """

    state: str = ""
    server_restarts: int = 0
    model_restarts: Mapping[str, int] = field(default_factory=dict)
    not_ready: frozenset[str] = frozenset()

    @property
    def ending(self) -> bool:
        """Whether the server stops: it must get no new requests."""
        return self.state == "ending"

    @property
    def coming(self) -> bool:
        """Whether the server is being started."""
        return self.state in ("starting", "restarting")

    def restarts(self, model: str) -> int:
        """Number of restarts that ended the processes of a model."""
        return self.server_restarts + self.model_restarts.get(model, 0)


async def read_report(address: str) -> ServeReport | None:
    """Read the report at `host:port`; None where nothing answers or the document is of another form."""
    content = await get_document(address, "/ready")
    return None if content is None else parse_report(content)


async def get_document(address: str, path: str) -> bytes | None:
    """Read a document at `host:port`; None where nothing answers."""
    return await asyncio.to_thread(_read, address, path)


def _read(address: str, path: str) -> bytes | None:
    try:
        with _open(f"http://{address}{path}", timeout=_ANSWER_S) as response:
            content: bytes = response.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:  # 503 has the same document
        content = error.read(_MAX_BYTES)
    except (OSError, ValueError):
        return None
    return content


def parse_report(content: bytes) -> ServeReport | None:
    """Return the report of a document; None if it has another form."""
    try:
        document: Any = json.loads(content)
        return ServeReport(
            state=str(document.get("state", "")),
            server_restarts=int(document["server_restarts"]),
            model_restarts={str(name): int(count) for name, count in document.get("restarts", {}).items()},
            not_ready=frozenset(map(str, [*document["not_ready"], *document.get("restarting", ())])),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
