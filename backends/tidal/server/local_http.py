"""HTTP requests to servers of this machine or of its cluster, without the proxies of the environment."""

from __future__ import annotations

import http.client
import urllib.request


def open_url(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """Send a request and return the open response.

    Args:
        request: URL or request.
        timeout_s: Longest time to wait for each part of the response, in seconds.

    Raises:
        urllib.error.HTTPError: The server answered with an error status.
        OSError: The server does not answer.
        http.client.HTTPException: The answer is not valid HTTP.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    response: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
    return response
