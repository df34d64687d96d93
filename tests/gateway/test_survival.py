"""Answers that survive: killed processes, lost servers, clients that disconnect, overload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from benchmarks.gateway.http_load import Request
from benchmarks.gateway.survival import SteadyLoad, is_ready, upstream
from testing.gateways import RunningGateway, running_gateway
from testing.serving import Served, serving
from testing.waiting import until
from tests.gateway.conftest import Backend, write_doubles
from tidal_client.errors import ConnectionFailed, RequestError, Unavailable
from tidal_gateway.errors import Refusal
from tidal_gateway.upstream.lanes import Lanes, create_lane_table
from tidal_gateway.upstream.pool import MAX_ATTEMPTS, Outgoing, Pool


class Servicer(GRPCInferenceServiceServicer):
    """A server of one model `m`, whose answer to each request is the next of `script`, or its own name."""

    def __init__(self, name: str) -> None:
        self.name, self.script = name, []
        self.received: list[messages.ModelInferRequest] = []
        self.ready = True

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return messages.ServerLiveResponse(live=self.ready)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        return messages.ModelStatisticsResponse(model_stats=[messages.ModelStatistics(name="m", version="1")])

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        return messages.ModelMetadataResponse(name="m", versions=["1"])

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return messages.ModelConfigResponse()

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.received.append(request)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, float):
            await asyncio.sleep(step)
        elif step is not None:
            await context.abort(*step)
        return messages.ModelInferResponse(model_name=self.name)


DIED = (grpc.StatusCode.INTERNAL, "Stub process 'm_0_0' is not healthy.")
LOST = (grpc.StatusCode.UNAVAILABLE, "Socket closed")
BUSY = (grpc.StatusCode.UNAVAILABLE, "the request was refused: max_queue_size is 4")


class Scene:
    """A pool over scripted servers."""

    def __init__(self, count: int, **options: Any) -> None:
        self.servicers = [Servicer(f"s{number}") for number in range(count)]
        self._lanes = Lanes(options.pop("max_outstanding", 100))
        self._options = options

    async def __aenter__(self) -> Scene:
        self._servers, addresses = [], []
        for each in self.servicers:
            server = grpc.aio.server()
            add_GRPCInferenceServiceServicer_to_server(each, server)
            addresses.append((f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", None))
            await server.start()
            self._servers.append(server)
        self.pool = Pool(addresses, self._lanes, **self._options)
        await self.pool.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        for each in self._servers:
            await each.stop(0)

    async def infer(self, limit_s: float = 10.0, **parameters: float) -> str:
        message = messages.ModelInferRequest(model_name="m")
        for name, value in parameters.items():
            message.parameters[name].double_param = value
        response = await self.pool.infer(Outgoing(message, time.monotonic() + limit_s))
        return str(response.model_name)


class TestRetries:
    def test_a_request_whose_process_died_goes_to_another_server(self) -> None:
        async def scenario() -> None:
            async with Scene(2) as scene:
                scene.servicers[0].script = [DIED]
                scene.servicers[1].script = [DIED]
                # One of both is hit first; the other one answers until the first is used again.
                scene.servicers[1].script = []
                found = [await scene.infer() for _ in range(6)]
                assert found.count("s1") == 6
                assert scene.pool.retries == {"died": 1, "budget": 0, "refused": 0}

        asyncio.run(scenario())

    def test_with_one_server_it_waits_for_the_restart(self) -> None:
        async def scenario() -> None:
            async with Scene(1) as scene:
                scene.servicers[0].script = [LOST]
                assert await scene.infer() == "s0"
                scene.servicers[0].script, scene.servicers[0].ready = [LOST], False
                with pytest.raises(ConnectionFailed):
                    await scene.infer(limit_s=0.0)

        asyncio.run(scenario())

    def test_it_waits_no_longer_than_its_deadline(self) -> None:
        async def scenario() -> None:
            async with Scene(1) as scene:
                scene.servicers[0].script, scene.servicers[0].ready = [LOST], False
                began = time.monotonic()
                with pytest.raises(Unavailable, match="did not become available"):
                    await scene.infer(limit_s=0.5)
                assert time.monotonic() - began > 0.3

        asyncio.run(scenario())

    def test_a_request_that_ends_its_process_each_time_is_not_sent_for_ever(self) -> None:
        async def scenario() -> None:
            async with Scene(3, retry_ratio=1.0) as scene:
                for each in scene.servicers:
                    each.script = [LOST] * 20
                with pytest.raises(RequestError):
                    await scene.infer()
                assert sum(len(each.received) for each in scene.servicers) == MAX_ATTEMPTS

        asyncio.run(scenario())

    def test_second_retries_need_the_budget(self) -> None:
        async def scenario() -> None:
            async with Scene(3) as scene:
                for each in scene.servicers:
                    each.script = [LOST] * 20
                with pytest.raises(RequestError):
                    await scene.infer()
                assert sum(len(each.received) for each in scene.servicers) == 2
                assert scene.pool.retries == {"died": 1, "budget": 0, "refused": 1}

        asyncio.run(scenario())

    def test_overload_is_not_sent_again(self) -> None:
        async def scenario() -> None:
            async with Scene(2) as scene:
                for each in scene.servicers:
                    each.script = [BUSY]
                with pytest.raises(Unavailable, match="max_queue_size"):
                    await scene.infer()
                assert sum(len(each.received) for each in scene.servicers) == 1

        asyncio.run(scenario())

    def test_a_retry_has_the_rest_of_the_deadline(self) -> None:
        async def scenario() -> None:
            async with Scene(1) as scene:
                scene.servicers[0].script = [LOST]
                await scene.infer(limit_s=5.0, latency_ms=5000.0)
                first, second = (each.parameters["latency_ms"].double_param for each in scene.servicers[0].received)
                assert first == 5000
                assert 0 < second < 5000

        asyncio.run(scenario())

    def test_each_server_gets_its_share(self) -> None:
        async def scenario() -> None:
            async with Scene(3) as scene:
                for each in scene.servicers:
                    each.script = [0.2] * 10
                found = await asyncio.gather(*(scene.infer() for _ in range(30)))
                assert sorted(found.count(f"s{number}") for number in range(3)) == [10, 10, 10]

        asyncio.run(scenario())

    def test_a_full_queue_is_refused_with_a_time(self) -> None:
        async def scenario() -> None:
            async with Scene(1, max_outstanding=4) as scene:
                scene.servicers[0].script = [0.5] * 4
                found = await asyncio.gather(*(scene.infer() for _ in range(6)), return_exceptions=True)
                refused = [each for each in found if isinstance(each, Refusal)]
                assert (found.count("s0"), len(refused)) == (4, 2)
                assert {each.status for each in refused} == {429}
                assert all(each.retry_after_s for each in refused)
                assert await scene.infer() == "s0"

        asyncio.run(scenario())


class TestLanes:
    def test_workers_share_the_bound(self, tmp_path: Path) -> None:
        create_lane_table(tmp_path / "lanes")
        workers = [Lanes(6, tmp_path / "lanes", 3) for _ in range(3)]
        with contextlib.ExitStack() as held:
            for number in range(6):
                held.enter_context(workers[number % 3].lane("m"))
            for each in workers:
                with pytest.raises(Refusal, match="'m' has 6 outstanding requests"), each.lane("m"):
                    pass
                with each.lane("other"):
                    pass
                assert each.outstanding()["m"] == 2
        with contextlib.ExitStack() as held:
            for _ in range(6):
                held.enter_context(workers[0].lane("m"))
            with pytest.raises(Refusal), workers[1].lane("m"):
                pass

    def test_requests_of_a_killed_worker_count_no_longer(self, tmp_path: Path) -> None:
        create_lane_table(tmp_path / "lanes")
        code = (
            "import os, signal; from pathlib import Path; from tidal_gateway.upstream.lanes import Lanes\n"
            f"lane = Lanes(9, Path({str(tmp_path / 'lanes')!r}), 2).lane('m'); lane.__enter__()\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code], check=False)
        with Lanes(1, tmp_path / "lanes", 2).lane("m"):  # in the column of the killed one
            pass


pytestmark = pytest.mark.server


def stub_pids(backend: Backend, model: str) -> list[int]:
    return [each.pid for each in backend.served.stubs(model)]


class TestKilledProcesses:
    def test_no_answer_is_lost_when_a_models_process_is_killed(self, gateway: RunningGateway, backend: Backend) -> None:
        """Requests wait in the killed process, and others arrive while the model restarts."""
        with ThreadPoolExecutor(8) as pool:
            slow = {"model": "embedder", "input": "sleep 1 "}
            waiting = [pool.submit(gateway.post, "/v1/embeddings", slow) for _ in range(4)]
            time.sleep(0.4)
            (stub,) = stub_pids(backend, "embedder")
            os.kill(stub, signal.SIGKILL)
            more = [pool.submit(gateway.post, "/v1/embeddings", {"model": "embedder", "input": "a"}) for _ in range(20)]
            codes = [each.result().status_code for each in [*waiting, *more]]
        assert codes == [200] * 24
        assert stub_pids(backend, "embedder") != [stub]
        retried = [line for line in gateway.log() if line.get("retries")]
        assert len(retried) >= 4

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
            assert any(line.get("retries") for line in gateway.log())

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
        async def disconnect() -> float:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
                request = client.build_request("POST", path, json=document, headers={"x-request-id": identifier})
                task = asyncio.create_task(client.send(request))
                while f"received {identifier}" not in backend.log():
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                return time.time()

        gone = asyncio.run(disconnect())
        assert until(lambda: f"cancelled {identifier}" in backend.log())
        # No bound: its time depends on the other load of the machine.
        assert backend.logged_at(f"cancelled {identifier}") - gone < 10
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
