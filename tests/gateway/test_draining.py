"""The end of a gateway: what it has accepted is answered, new connections are refused, and a cut stream says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.gateways import RunningGateway, running_gateway
from tests.gateway.scene import Scene, eventually, runs
from tidal_gateway.settings import GatewaySettings
from tidal_gateway.workers import WorkerStart, worker_config

pytestmark = pytest.mark.server

STREAM = ("POST", "/v2/models/m/generate_stream")
TEXT = {"text_input": "x"}


@asynccontextmanager
async def before(scene: Scene, folder: Path, *options: str) -> AsyncIterator[tuple[RunningGateway, httpx.AsyncClient]]:
    """A `tidal gateway` before the first server of a scene, and a client with connections of its own."""
    context = running_gateway(folder, "--server", f"127.0.0.1:{scene.ports[0]}", *options)
    gateway = await asyncio.to_thread(context.__enter__)
    try:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:

            async def up() -> bool:
                try:
                    return (await client.get("/health")).status_code == 200
                except httpx.TransportError:
                    return False

            async with asyncio.timeout(60):
                while not await up():
                    await asyncio.sleep(0.05)
            yield gateway, client
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def refused(gateway: RunningGateway) -> None:
    """Wait until the gateway refuses connections; one that it neither accepts nor refuses fails the test."""
    host, _, port = gateway.address.partition(":")
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                return
            writer.close()
            await asyncio.sleep(0.02)


def texts(content: str) -> list[Any]:
    found = [json.loads(line.removeprefix("data: ")) for line in content.split("\n\n") if line]
    return [each.get("text_output", each.get("error")) for each in found]


class TestDraining:
    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_streams_and_answers_finish_and_new_connections_are_refused(self, tmp_path: Path, workers: str) -> None:
        @runs
        async def scenario() -> None:
            async with (
                Scene(1, decoupled=True) as scene,
                before(scene, tmp_path, "--workers", workers) as (gateway, client),
            ):
                more, rest = asyncio.Event(), asyncio.Event()
                scene.servicers[0].script = [["a", more, "b", rest, "c"], [rest, "whole"]]
                async with client.stream(*STREAM, json=TEXT) as stream:
                    parts = stream.aiter_text()
                    found = await anext(parts)
                    whole = asyncio.create_task(client.post("/v2/models/m/generate", json=TEXT))
                    await eventually(lambda: scene.sent() == [2])
                    gateway.process.terminate()
                    await refused(gateway)
                    more.set()
                    found += await anext(parts)
                    assert texts(found) == ["a", "b"]
                    rest.set()
                    async for part in parts:
                        found += part
                assert texts(found) == ["a", "b", "c"]
                assert (await whole).json()["text_output"] == "whole"
                assert await asyncio.to_thread(gateway.process.wait, 20) == 0

        scenario()

    @runs
    async def test_while_it_drains_health_is_503_and_requests_are_served(self, tmp_path: Path) -> None:
        async with Scene(1) as scene, before(scene, tmp_path, "--drain-s", "1000") as (gateway, client):
            gateway.process.terminate()
            async with asyncio.timeout(20):
                while (response := await client.get("/health")).status_code != 503:
                    await asyncio.sleep(0.02)
            assert response.json()["status"] == "draining"
            async with httpx.AsyncClient(base_url=gateway.url) as other:
                assert (await other.post("/v2/models/m/generate", json=TEXT)).status_code == 200
            for each in gateway.workers():  # a second signal ends the draining
                each.terminate()
            assert await asyncio.to_thread(gateway.process.wait, 20) == 0

    @runs
    async def test_what_the_time_limit_cuts_ends_with_an_error(self, tmp_path: Path) -> None:
        async with (
            Scene(1, decoupled=True) as scene,
            before(scene, tmp_path, "--exit-timeout-s", "1") as (gateway, client),
        ):
            never = asyncio.Event()
            scene.servicers[0].script = [["a", never], [never]]
            async with client.stream(*STREAM, json=TEXT) as stream:
                parts = stream.aiter_text()
                found = await anext(parts)
                whole = asyncio.create_task(client.post("/v1/completions", json={"model": "m", "prompt": "x"}))
                await eventually(lambda: scene.sent() == [2])
                gateway.process.terminate()
                async for part in parts:
                    found += part
            first, last = texts(found)
            assert first == "a"
            assert "the gateway stopped before the answer was complete" in last
            assert (await whole).status_code == 503
            assert "before there was an answer" in (await whole).json()["error"]["message"]


def test_a_worker_that_a_busy_machine_delays_is_not_killed() -> None:
    """uvicorn kills a worker that does not answer its parent in time, with all requests in it."""
    config = worker_config(WorkerStart(GatewaySettings(workers=2), None, None, None))
    assert config.timeout_worker_healthcheck == 60
    assert config.workers == 2
