"""Reading a server's metrics, and what its `tidal serve` reports, over HTTP."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from typing import Any, Final

from tidal_client.errors import ConnectionFailed

# A busy server writes its page late.
_ANSWER_S: Final = 5.0
_MAX_BYTES: Final = 32 << 20
# Proxies of the environment are for other addresses.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def read_metrics(address: str) -> str:
    """Return the page of metrics at `host:port`.

    Raises:
        ConnectionFailed: Nothing answers there, or something other than a server.
    """
    url = f"http://{address}/metrics"
    try:
        with _open(url, timeout=_ANSWER_S) as response:
            content: bytes = response.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:
        raise ConnectionFailed(f"{url} answered {error.code}; expected the metrics of a server") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConnectionFailed(f"{url} does not answer: {getattr(error, 'reason', error)}") from None
    text = content.decode("utf-8", "replace")
    if not re.search(r"^(# HELP )?nv_", text, re.MULTILINE):
        raise ConnectionFailed(f"{url} is not the metrics of a tritonserver, whose default port is 8002")
    return text


def read_report(address: str, path: str) -> dict[str, Any] | None:
    """Return the document of `/ready` or `/models` of a status endpoint; None where there is none.

    Args:
        address: ``host:port`` of the status endpoint of a `tidal serve`.
        path: Path of the document.
    """
    try:
        with _open(f"http://{address}{path}", timeout=_ANSWER_S) as response:
            content = response.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:  # /ready answers 503 with the same document
        content = error.read(_MAX_BYTES)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    try:
        document = json.loads(content)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "models" in document else None
