"""The page of errors, from the exceptions of server and client."""

from __future__ import annotations

import inspect
from typing import Any

from buildtools.reference.pages import note, page, table

#: How Triton reports each of Tidal's error codes: HTTP status, gRPC status.
_STATUSES = {
    "INVALID_ARG": ("400", "INVALID_ARGUMENT"),
    "NOT_FOUND": ("404", "NOT_FOUND"),
    "UNAVAILABLE": ("503", "UNAVAILABLE"),
    "CANCELLED": ("400", "CANCELLED"),
    "UNSUPPORTED": ("501", "UNIMPLEMENTED"),
    "INTERNAL": ("500", "INTERNAL"),
}


def errors_page() -> str:
    """Error codes of the server, and classes of the client."""
    from tidal import errors as server
    from tidal_client import errors as client

    kinds = [each for each in _subclasses(server, server.TidalError) if each.code in _STATUSES]
    codes = {each.code: each for each in kinds}
    rows = [(f"`{code}`", _meaning(codes[code]), *_STATUSES[code]) for code in _STATUSES]
    classes = [
        (f"`{each.__name__}`", f"`{each.code}`", _meaning(each)) for each in _subclasses(client, client.RequestError)
    ]
    return page(
        "Errors",
        "Every error code that a request may be answered with, and the exceptions of `tidal_client`.",
        "An error is one sentence for whoever has to act on it: what is wrong, the value received, what is accepted. A "
        "bad request is answered alone; other requests of its batch are not affected.",
        "## Codes of the server\n\n" + table(("code", "meaning", "HTTP", "gRPC"), rows),
        note("errors"),
        "## Exceptions of tidal_client\n\nAll are `RequestError`s with a `code`; the message is the server's own where "
        "the server refused the request. `DeadlineExceeded` is also a `TimeoutError`, `ConnectionFailed` also a "
        "`ConnectionError`.\n\n" + table(("class", "code", "meaning"), classes),
        "[Handle errors and restarts](../how-to/handle-errors.md) says which of them may be retried.",
    )


def _subclasses(module: Any, base: type) -> list[Any]:
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)]
    return [each for each in found if each is not base]


def _meaning(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
