"""Answers that survive: killed processes, lost servers, clients that disconnect, overload."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.gateway.http_load import Request
from benchmarks.gateway.survival import SteadyLoad, is_ready, upstream
from testing.gateways import RunningGateway, running_gateway
from testing.serving import Served, serving
from testing.waiting import until
from tests.gateway.conftest import Backend, write_doubles

pytestmark = pytest.mark.server


def stub_pids(backend: Backend, model: str) -> list[int]:
    return [each.pid for each in backend.served.stubs(model)]


class TestKilledProcesses:
    def test_no_answer_is_lost_when_a_models_process_is_killed(self, gateway: RunningGateway, backend: Backend) -> None:
        """Requests wait in the killed process, and others arrive while the model restarts."""
        with ThreadPoolExecutor(8) as pool:
            slow, names = {"model": "embedder", "input": "sleep 3 "}, [f"killed-{time.time_ns()}-{n}" for n in range(4)]
            waiting = [
                pool.submit(gateway.post, "/v1/embeddings", slow, headers={"x-request-id": name}) for name in names
            ]
            assert until(lambda: {f"received {name}" for name in names} <= set(backend.log()))
            (stub,) = stub_pids(backend, "embedder")
            os.kill(stub, signal.SIGKILL)
            more = [pool.submit(gateway.post, "/v1/embeddings", {"model": "embedder", "input": "a"}) for _ in range(20)]
            codes = [each.result().status_code for each in [*waiting, *more]]
        assert codes == [200] * 24
        assert stub_pids(backend, "embedder") != [stub]

        def retried() -> set[str]:
            return {line["id"] for line in gateway.log() if line.get("retries")}

        assert until(lambda: set(names) <= retried())

    def test_no_answer_is_lost_with_two_servers_of_which_one_is_killed(self, backend: Backend, tmp_path: Path) -> None:
        """A stub of either server, then one tritonserver."""
        repository = tmp_path / "models"
        write_doubles(repository, tmp_path / "log", ["embedder"])
        (tmp_path / "runtime").mkdir()
        with (
            serving(repository, tmp_path / "runtime", "--exit-timeout", "2") as other,
            running_gateway(tmp_path, "--server", backend.address, "--server", upstream(other)) as gateway,
        ):
            assert until(gateway.ready)
            assert until(lambda: gateway.get("/health").json()["servers_up"] == 2)
            request = Request(gateway.address, "/v1/embeddings", {"model": "embedder", "input": "sleep 0.1"})
            with SteadyLoad([request], clients=8) as load:
                for served in (other, backend.served):
                    load.wait_for(20)
                    old = {each.pid for each in served.stubs("embedder")}
                    for stub in served.stubs("embedder"):
                        stub.kill()
                    assert until(lambda served=served, old=old: _restarted(served, old), 60)
                load.wait_for(20)
                os.kill(other.state["server_pid"], signal.SIGKILL)
                load.wait_for(40)
            assert load.failures == []
            assert until(lambda: any(line.get("retries") for line in gateway.log()))

    def test_a_stream_that_has_begun_ends_with_an_error(self, gateway: RunningGateway) -> None:
        document = {"model": "talker", "messages": [{"role": "user", "content": "die after 20"}], "stream": True}
        response = gateway.post("/v1/chat/completions", document)
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert response.status_code == 200
        assert len(lines) > 2
        error = json.loads(lines[-1])["error"]
        assert "the text so far is all" in error["message"]

        def answers() -> bool:
            again = {"model": "talker", "messages": [{"role": "user", "content": "hi"}]}
            return gateway.post("/v1/chat/completions", again).status_code == 200

        assert until(answers)

    def test_a_killed_worker_is_replaced(self, backend: Backend, tmp_path: Path) -> None:
        with running_gateway(tmp_path, "--server", backend.address, "--workers", "2") as gateway:
            assert until(gateway.ready)
            workers = [each.pid for each in gateway.workers()]
            os.kill(workers[0], signal.SIGKILL)
            assert until(lambda: len({each.pid for each in gateway.workers()} - {workers[0]}) == 2)
            assert until(gateway.ready)


def _restarted(served: Served, old: set[int]) -> bool:
    return bool({each.pid for each in served.stubs("embedder")} - old) and is_ready(served)


class TestDisconnects:
    @pytest.fixture
    def identifier(self) -> str:
        return f"gone-{time.monotonic_ns()}"

    @pytest.mark.parametrize(
        ("path", "document"),
        [
            ("/v1/embeddings", {"model": "embedder", "input": "sleep 15"}),
            (
                "/v1/chat/completions",
                {"model": "talker", "messages": [{"role": "user", "content": "forever"}], "stream": True},
            ),
            ("/v1/chat/completions", {"model": "talker", "messages": [{"role": "user", "content": "forever"}]}),
            ("/v2/models/embedder/generate", {"text_input": "sleep 15"}),
        ],
    )
    def test_the_work_is_cancelled(
        self, gateway: RunningGateway, backend: Backend, identifier: str, path: str, document: Any
    ) -> None:
        async def first_token(client: httpx.AsyncClient, request: httpx.Request) -> None:
            """Read a stream to its first token, which the log counts, and leave."""
            response = await client.send(request, stream=True)
            async for line in response.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    break
            await response.aclose()

        async def disconnect() -> None:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
                request = client.build_request("POST", path, json=document, headers={"x-request-id": identifier})
                if document.get("stream"):
                    await first_token(client, request)
                    return
                task = asyncio.create_task(client.send(request))
                while f"received {identifier}" not in backend.log():
                    await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(disconnect())
        assert until(lambda: f"cancelled {identifier}" in backend.log())
        assert until(lambda: any(line["id"] == identifier for line in gateway.log()))
        (line,) = [line for line in gateway.log() if line["id"] == identifier]
        assert (line["status"], line["code"]) == (499, "client_disconnected")
        assert line["model"] == document.get("model", "embedder")
        assert line["ms"] > 0
        if document.get("stream"):
            assert 0 < line["output_tokens"] < 2000

    @pytest.mark.parametrize("waiting", ["", "x" * 200_000])
    def test_work_is_cancelled_while_a_pipelined_request_waits(
        self, gateway: RunningGateway, backend: Backend, identifier: str, waiting: str
    ) -> None:
        host, _, port = gateway.address.partition(":")

        def post(document: Any, *lines: str) -> bytes:
            body = json.dumps(document).encode()
            head = ["POST /v1/embeddings HTTP/1.1", "host: x", f"content-length: {len(body)}", *lines, "", ""]
            return "\r\n".join(head).encode() + body

        with socket.create_connection((host, int(port)), 20) as connection:
            connection.sendall(post({"model": "embedder", "input": "sleep 15"}, f"x-request-id: {identifier}"))
            assert until(lambda: f"received {identifier}" in backend.log())
            connection.sendall(post({"model": "embedder", "input": f"b {waiting}"}))
        assert until(lambda: f"cancelled {identifier}" in backend.log(), 10)
        assert until(lambda: any(line["id"] == identifier for line in gateway.log()))
        (line,) = [line for line in gateway.log() if line["id"] == identifier]
        assert line["status"] == 499

    def test_no_slot_is_lost(self, gateway: RunningGateway, backend: Backend) -> None:
        """Streams and whole texts of a real decoder, dropped at random times; afterwards all slots are free."""

        async def drop(client: httpx.AsyncClient, number: int) -> None:
            document = {"model": "writer", "prompt": "hello", "max_tokens": 100, "stream": number % 2 == 0}
            try:
                async with asyncio.timeout(0.005 * (number % 20)):
                    await client.post("/v1/completions", json=document)
            except TimeoutError:
                pass

        async def all_of_them() -> None:
            limits = httpx.Limits(max_connections=20)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, limits=limits) as client:
                for _ in range(5):
                    await asyncio.gather(*(drop(client, number) for number in range(20)))

        asyncio.run(all_of_them())

        def taken() -> float:
            page = httpx.get(f"http://{backend.served.report['metrics']}/metrics", timeout=10).text
            found = re.findall(r'^tidal_flover_taken_slots\{[^}]*"writer"[^}]*\} (\S+)', page, re.MULTILINE)
            return sum(map(float, found))

        assert until(lambda: taken() == 0)
        assert gateway.post("/v1/completions", {"model": "writer", "prompt": "x", "max_tokens": 2}).status_code == 200
        outstanding = 'tidal_gateway_model_outstanding_requests{model="writer"} 0.0'
        assert until(lambda: outstanding in gateway.metrics())
