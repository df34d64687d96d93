"""Streams whose process dies: one that has begun ends with an error that says so, one that has not is sent again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.gateway.scene import LOST, Scene, eventually, runs

COMPLETION = {"model": "m", "prompt": "x"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
#: Streams by path and body.
STREAMS = [
    ("/v1/completions", {**COMPLETION, "stream": True}),
    ("/v1/completions", {**COMPLETION, "prompt": ["x", "y"], "stream": True}),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v2/models/m/generate_stream", {"text_input": "x"}),
]


def events(text: str) -> list[Any]:
    found = [each.removeprefix("data: ") for each in text.split("\n\n") if each]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


@pytest.mark.parametrize(("path", "body"), STREAMS)
class TestStreams:
    def test_that_have_begun_end_with_an_error(self, path: str, body: dict[str, Any]) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(2, decoupled=True) as scene:
                for each in scene.servicers:
                    each.script = [["a", "b", LOST], ["a", "b", LOST]]
                response = await scene.http.post(path, json=body)
                found = events(response.text)
                assert response.status_code == 200
                assert found[-1] != "[DONE]"
                error = found[-1]["error"]
                message = error["message"] if path.startswith("/v1") else error
                assert "the process that generated this stream died; the text so far is all" in message
                assert len(found) > 1
                assert scene.pool.retries["died"] == 0
                # The next one is answered, by whichever server is up.
                assert events((await scene.http.post(path, json=body)).text)[-1] is not None

        scenario()

    def test_that_have_not_begun_are_sent_again(self, path: str, body: dict[str, Any]) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(2, decoupled=True, retry_ratio=0.0) as scene:
                scene.servicers[0].script = [[LOST], [LOST]]
                response = await scene.http.post(path, json=body)
                assert response.status_code == 200
                found = events(response.text)
                assert not any("error" in each for each in found if each != "[DONE]")
                assert (found[-1] == "[DONE]") == path.startswith("/v1")

        scenario()


class TestWholeTexts:
    @pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
    def test_are_sent_again(self, path: str, body: dict[str, Any]) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(2, decoupled=True, retry_ratio=0.0) as scene:
                scene.servicers[0].script = [[LOST]]
                assert {(await scene.http.post(path, json=body)).status_code for _ in range(3)} == {200}

        scenario()

    @pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
    @pytest.mark.parametrize("stream", [False, True])
    def test_resume_is_refused_by_name(self, path: str, body: dict[str, Any], stream: bool) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(1, decoupled=True) as scene:
                response = await scene.http.post(path, json={**body, "resume": "id", "stream": stream})
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["param"] == "resume"
                assert "'resume' is not supported" in error["message"]
                header = await scene.http.post(path, json=body, headers={"x-tidal-resume": "id"})
                assert (header.status_code, "x-tidal-resume" in header.text) == (400, True)
                assert scene.sent() == [0]

        scenario()


class TestSupervisedStreams:
    @runs
    async def test_a_reported_restart_ends_a_stream_that_has_begun(self) -> None:
        """Triton reports nothing of it: the stream would wait for its timeout."""
        async with Scene(1, supervised=True, decoupled=True) as scene:
            scene.servicers[0].script = [["a", asyncio.Event()]]
            waiting = asyncio.create_task(scene.http.post("/v1/completions", json={**COMPLETION, "stream": True}))
            await eventually(lambda: any(each.begun for each in scene.pool.servers[0].calls))
            # A report from after the call shows that it is not of the new process.
            reads = scene.supervisors[0].reads
            await eventually(lambda: scene.supervisors[0].reads > reads + 1)
            scene.supervisors[0].document |= {"restarts": {"m": 1}}
            found = events((await waiting).text)
            assert found[0]["choices"][0]["text"] == "a"
            assert "died" in found[-1]["error"]["message"]

    @runs
    async def test_an_error_of_the_model_is_no_death(self) -> None:
        async with Scene(1, decoupled=True) as scene:
            scene.servicers[0].script = [["a", (grpc.StatusCode.INVALID_ARGUMENT, "no such token")]]
            found = events((await scene.http.post("/v1/completions", json={**COMPLETION, "stream": True})).text)
            assert "no such token" in found[-1]["error"]["message"]
            assert scene.pool.servers[0].serves("m")
