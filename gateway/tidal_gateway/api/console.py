"""The console: its page, and the events that its charts show. Read-only."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from tidal_gateway.api.answers import EventStream, HttpAnswer, dump, event, json_answer
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.console import Asset, assets
from tidal_gateway.errors import Refusal
from tidal_gateway.live.frames import definitions, values_only, visible

#: Seconds after which a stream ends and the page opens another one, with which its key is checked again.
STREAM_S: Final = 300.0
# How long a stream waits before it looks whether the gateway drains, in seconds.
_LOOK_S: Final = 0.5
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"cache-control", b"no-cache"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


async def page(request: ApiRequest) -> HttpAnswer:
    """Return the page of the console."""
    return _file(request, "index.html")


async def file(request: ApiRequest) -> HttpAnswer:
    """Return a file of the page."""
    return _file(request, request.path["file"])


async def access(request: ApiRequest) -> HttpAnswer:
    """Whether requests need a key."""
    return json_answer({"keys": request.gateway.keys is not None})


async def events(request: ApiRequest) -> EventStream:
    """Stream the state and the figures of all models that the key may use."""
    sampler = request.gateway.sampler
    if sampler is None:
        raise _off()
    if request.gateway.draining:
        raise Refusal(503, "the gateway is about to stop; open the console again", code="draining", retry_after_s=5)
    key = request.key
    restricted = key is not None and bool(key.models)

    def shown(found: dict[str, Any]) -> dict[str, Any]:
        return visible(found, request.allows, restricted=restricted)

    async def stream() -> AsyncGenerator[bytes, None]:
        end, seen = time.monotonic() + STREAM_S, 0
        async with sampler.viewer():
            before = [values_only(shown(each)) for each in list(sampler.history)[:-1]]
            head = {"charts": definitions(), "history": before}
            while time.monotonic() < end and not request.gateway.draining:
                found = await sampler.newer(seen, _LOOK_S)
                if found is not None:
                    seen = found["number"]
                    yield event(dump({**head, **shown(found)}))
                    head = {}

    return EventStream(stream())


def _file(request: ApiRequest, name: str) -> HttpAnswer:
    if request.gateway.sampler is None:
        raise _off()
    found: Asset | None = assets().get(name)
    if found is None:
        raise Refusal(404, f"the console has no file '{name[:100]}'; open / instead", code="unknown_path")
    headers = (*_HEADERS, (b"etag", found.etag))
    if request.headers.get("if-none-match", "").encode("latin-1") == found.etag:
        return HttpAnswer(b"", 304, found.media_type, headers)
    return HttpAnswer(found.content, 200, found.media_type, headers)


def _off() -> Refusal:
    return Refusal(404, "the console is off: console_viewers is 0", code="console_off")
