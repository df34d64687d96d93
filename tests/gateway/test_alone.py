"""`tidal gateway` without a server behind it: what its own processes and keys guarantee."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tidal_gateway.api.routes import ROUTES, RouteEntry
from tidal_gateway.keys.store import add_key

pytestmark = pytest.mark.server

NO_SERVER = ("--server", "127.0.0.1:9")


def answers(gateway: RunningGateway) -> bool:
    try:
        return gateway.get("/v2/health/live").status_code == 200
    except httpx.TransportError:
        return False


def connected(gateway: RunningGateway) -> socket.socket:
    host, _, port = gateway.address.partition(":")
    return socket.create_connection((host, int(port)), 20)


class TestWorkers:
    def test_what_a_killed_worker_counted_stays_and_what_it_held_goes(self, tmp_path: Path) -> None:
        with running_gateway(tmp_path, *NO_SERVER, "--workers", "2") as gateway:
            assert until(lambda: answers(gateway) and len(gateway.workers()) == 2)
            for _ in range(20):
                gateway.get("/v1/models")
            assert until(lambda: total(gateway, "requests_total", 'route="models"') == 20)
            with connected(gateway) as connection:
                connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
                assert until(lambda: total(gateway, "in_flight_requests") == 1)
                killed = {each.pid for each in gateway.workers()}
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                assert until(lambda: len({each.pid for each in gateway.workers()} - killed) == 2)
            assert until(lambda: answers(gateway) and total(gateway, "in_flight_requests") == 0)
            assert total(gateway, "requests_total", 'route="models"') == 20
            gateway.get("/v1/models")
            assert until(lambda: total(gateway, "requests_total", 'route="models"') == 21)

    def test_workers_that_are_killed_during_their_health_check_are_replaced_at_once(self, tmp_path: Path) -> None:
        with running_gateway(tmp_path, *NO_SERVER, "--workers", "2") as gateway:
            assert until(lambda: answers(gateway) and len(gateway.workers()) == 2)
            workers = gateway.workers()
            for each in workers:
                each.suspend()
            time.sleep(2.0)  # checks begin every 0.5 s, and last 60 s for a worker that does not answer
            for each in workers:
                each.kill()
            assert until(
                lambda: len({each.pid for each in gateway.workers()} - {each.pid for each in workers}) == 2, 30
            )
            assert until(lambda: answers(gateway))


def total(gateway: RunningGateway, name: str, label: str = "") -> float:
    found = re.findall(rf"^tidal_gateway_{name}(?:{{([^}}]*)}})? (\S+)$", gateway.metrics(), re.MULTILINE)
    return sum(float(value) for labels, value in found if label in labels)


#: A body of each route that names the model `other`.
BODIES: dict[str, Any] = {
    "embeddings": {"model": "other", "input": "a"},
    "chat": {"model": "other", "messages": [{"role": "user", "content": "a"}]},
    "completions": {"model": "other", "prompt": "a"},
    "classify": {"model": "other", "input": "a"},
    "rerank": {"model": "other", "query": "a", "documents": ["b"]},
    "tei_embed": {"model": "other", "inputs": "a"},
    "tei_rerank": {"model": "other", "query": "a", "texts": ["b"]},
    "tei_predict": {"model": "other", "inputs": "a"},
    "infer": {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]},
    "generate": {"text_input": "a"},
    "generate_stream": {"text_input": "a"},
}
_OF_NO_MODEL = ("models", "v2", "openapi")
_WITH_PARAMETERS = ("infer", "generate", "generate_stream")
Restricted = tuple[RunningGateway, dict[str, str]]


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restricted]:
    """A gateway with a key that may use the task `encoder/mood`."""
    folder = tmp_path_factory.mktemp("restricted")
    key, _ = add_key(folder / "keys.json", "x", models=("encoder/mood",))
    with running_gateway(folder, *NO_SERVER, "--keys", str(folder / "keys.json"), "--timeout-s", "1") as started:
        assert until(lambda: answers(started)), (folder / "stderr").read_text()
        yield started, {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if not each.open and each.name not in _OF_NO_MODEL], ids=lambda each: each.path
)
def test_every_route_refuses_what_a_key_may_not_use(restricted: Restricted, route: RouteEntry) -> None:
    gateway, headers = restricted
    for way in ("model", "base", "name", "field", "header", "parameter"):
        model = "other" if way == "model" else "encoder"
        document = {**BODIES.get(route.name, {})}
        own = {**headers, **({"x-tidal-task": "news"} if way == "header" else {})}
        if "model" in document:
            document["model"] = "encoder/news" if way == "name" else model
        if way == "field" and route.name != "infer":
            document["task"] = "news"
        if way == "parameter" and route.name in _WITH_PARAMETERS:
            document["parameters"] = {"task": "news"}
        path = route.path.replace("{model}", model).replace("{model:path}", model).replace("{version}", "1")
        with httpx.Client(base_url=gateway.url, headers=own, timeout=30) as client:
            sent: dict[str, Any] = {"json": document} if route.method == "POST" else {}
            response = client.request(route.method, path, **sent)
        assert response.status_code == 403, (way, response.text)
        assert "may not use" in response.text
        assert json.loads(response.content)


def test_a_client_that_waits_for_its_answers_has_one_request_at_a_time(tmp_path: Path) -> None:
    """Over connections to both workers: one that is counted beyond its last byte has refused 4 of 3,000."""
    key, _ = add_key(tmp_path / "keys.json", "x", max_concurrency=1)
    options = ("--workers", "2", "--keys", str(tmp_path / "keys.json"))
    with running_gateway(tmp_path, *NO_SERVER, *options) as gateway:
        assert until(lambda: answers(gateway)), (tmp_path / "stderr").read_text()
        headers = {"Authorization": f"Bearer {key}"}
        clients = [httpx.Client(base_url=gateway.url, headers=headers, timeout=30) for _ in range(8)]
        codes = {clients[number % 8].get("/v1/models").status_code for number in range(3000)}
        for each in clients:
            each.close()
    assert codes == {200}
