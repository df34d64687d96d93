"""Requests that share what a server holds in memory: a task, or the beginning of a prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.scene import Scene, eventually, runs
from tidal_gateway.upstream.policies import AFFINITY_SLACK, Candidate, choose

PREFIX = "You answer questions about ships. " * 10


def prompt(number: int, prefix: str = PREFIX) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"model": "m", "prompt": f"{prefix} question {number}"}


def chat(number: int, prefix: str = PREFIX) -> tuple[str, dict[str, Any]]:
    roles = (("system", prefix), ("user", f"question {number}"))
    return "/v1/chat/completions", {"model": "m", "messages": [{"role": role, "content": text} for role, text in roles]}


def kserve(number: int, prefix: str = PREFIX) -> tuple[str, dict[str, Any]]:
    return "/v2/models/m/generate", {"text_input": f"{prefix} question {number}"}


def task(number: int, prefix: str = "mood") -> tuple[str, dict[str, Any]]:
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [f"text {number}"]}
    return "/v2/models/m/infer", {"inputs": [tensor], "parameters": {"task": prefix}}


async def send(scene: Scene, call: tuple[str, dict[str, Any]]) -> int:
    """Send a request alone, and return the number of the server that received it."""
    before = scene.sent()
    response = await scene.http.post(call[0], json=call[1])
    assert response.status_code == 200, response.text
    (found,) = [number for number, (old, new) in enumerate(zip(before, scene.sent(), strict=True)) if new > old]
    return found


@pytest.mark.parametrize(("call", "decoupled"), [(prompt, True), (chat, True), (kserve, True), (task, False)])
class TestAffinity:
    def test_what_is_shared_goes_to_one_server_and_different_things_to_all(self, call: Any, decoupled: bool) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(3, decoupled=decoupled) as scene:
                first = await send(scene, call(0))
                assert {await send(scene, call(number)) for number in range(1, 9)} == {first}
                others = [await send(scene, call(0, f"other {number}")) for number in range(40)]
                assert set(others) == {0, 1, 2}

        scenario()

    def test_it_yields_to_load_and_returns(self, call: Any, decoupled: bool) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(2, decoupled=decoupled) as scene:
                preferred = await send(scene, call(0))
                answer = asyncio.Event()
                held = [[answer, "late"]] if decoupled else [answer]
                scene.servicers[preferred].script = held * (AFFINITY_SLACK + 1)
                waiting = []
                for number in range(AFFINITY_SLACK + 1):
                    path, body = call(number)
                    waiting.append(asyncio.create_task(scene.http.post(path, json=body)))
                    await eventually(lambda number=number: len(scene.pool.servers[preferred].calls) == number + 1)
                assert {await send(scene, call(number)) for number in range(4)} == {1 - preferred}
                answer.set()
                await asyncio.gather(*waiting)
                assert {await send(scene, call(number)) for number in range(4)} == {preferred}

        scenario()

    def test_it_yields_to_an_outage_and_returns(self, call: Any, decoupled: bool) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(3, decoupled=decoupled) as scene:
                preferred = await send(scene, call(0))
                await scene.stop_server(preferred)
                found = await scene.http.post(call(1)[0], json=call(1)[1])
                assert found.status_code == 200
                (second,) = {await send(scene, call(number)) for number in range(4)}
                assert second != preferred
                await scene.start_server(preferred)
                await eventually(lambda: scene.pool.servers[preferred].up)
                assert {await send(scene, call(number)) for number in range(4)} == {preferred}

        scenario()


def test_without_anything_shared_requests_alternate() -> None:
    @runs
    async def scenario() -> None:
        async with Scene(2) as scene:
            assert [await scene.infer() for _ in range(6)].count("s0") == 3

    scenario()


def test_a_server_that_leaves_moves_only_what_it_had() -> None:
    servers = [Candidate(f"host{number}:1", 0) for number in range(4)]
    moved = 0
    for number in range(300):
        before, after = choose(servers, 0, f"task {number}"), choose(servers[:3], 0, f"task {number}")
        assert before is not None
        moved += before != after
        assert before == after or before == servers[3]
    assert 40 < moved < 110
