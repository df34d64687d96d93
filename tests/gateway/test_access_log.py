"""The access log's line of requests that no route answers, in the process of the test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tidal_gateway.app import create_app
from tidal_gateway.settings import GatewaySettings

CASES = [
    ("GET", "/nothing", 404, "unknown_path"),
    ("POST", "/v1/nothing", 404, "unknown_path"),
    ("POST", "/v2/model/m/infer", 404, "unknown_path"),
    ("GET", "/v1/embeddings", 405, "method_not_allowed"),
    ("DELETE", "/v1/models/m", 405, "method_not_allowed"),
    ("PATCH", "/health", 405, "method_not_allowed"),
    ("OPTIONS", "/v1/embeddings", 405, "method_not_allowed"),
    ("GET", "/console", 404, "unknown_path"),
    ("GET", "/console/", 404, "unknown_path"),
    ("GET", "/console/nothing.js", 404, "unknown_path"),
    ("GET", "/console/api/nothing", 404, "unknown_path"),
    ("GET", "/console/%2e%2e/app.py", 404, "unknown_path"),
    ("GET", "/favicon.ico", 404, "unknown_path"),
    ("POST", "/", 405, "method_not_allowed"),
    ("POST", "/console/console.js", 405, "method_not_allowed"),
    ("POST", "/console/api/events", 405, "method_not_allowed"),
    ("HEAD", "/nothing", 404, "unknown_path"),
    ("HEAD", "/v1/embeddings", 405, "method_not_allowed"),
]


@pytest.mark.parametrize("origins", [(), ("https://my.site",)], ids=["plain", "cors"])
@pytest.mark.parametrize(("method", "path", "status", "code"), CASES)
def test_a_request_that_no_route_answers_has_a_line(
    tmp_path: Path, method: str, path: str, status: int, code: str, origins: tuple[str, ...]
) -> None:
    log = tmp_path / "access.jsonl"

    async def ask() -> httpx.Response:
        settings = GatewaySettings(server=("127.0.0.1:1",), cors_origin=origins)
        app = create_app(settings, log_target=str(log))
        assert app.gateway.log is not None
        headers = {"x-request-id": "mine", "Origin": "https://my.site"}
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            found = await client.request(method, path, headers=headers)
        app.gateway.log.close()
        await app.gateway.pool.close()
        return found

    response = asyncio.run(ask())
    assert (response.status_code, response.headers.get_list("x-request-id")) == (status, ["mine"])
    (line,) = [json.loads(each) for each in log.read_text().splitlines()]
    assert line["path"] == httpx.URL(f"http://gateway{path}").path
    assert (line["method"], line["status"], line["code"], line["id"]) == (method, status, code, "mine")
