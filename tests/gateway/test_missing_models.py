"""Models that are not loaded, and unknown paths, in the shape of the API that was called."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.gateway.scene import Scene, eventually, runs
from tests.gateway.sentences import sentence
from tidal_gateway.upstream import server as gateway_server

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["x"]}
#: Path, body without the model, and what a model that is missing is answered with, by API.
CALLS: dict[str, tuple[str, Any]] = {
    "embeddings": ("/v1/embeddings", {"model": "m", "input": "x"}),
    "chat": ("/v1/chat/completions", CHAT),
    "stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "completions": ("/v1/completions", {"model": "m", "prompt": "x"}),
    "classify": ("/v1/classify", {"model": "m", "input": "x"}),
    "rerank": ("/v1/rerank", {"model": "m", "query": "x", "documents": ["x"]}),
    "cohere": ("/v2/rerank", {"model": "m", "query": "x", "documents": ["x"]}),
    "tei_embed": ("/embed", {"model": "m", "inputs": "x"}),
    "tei_rerank": ("/rerank", {"model": "m", "query": "x", "texts": ["x"]}),
    "tei_predict": ("/predict", {"model": "m", "inputs": "x"}),
    "infer": ("/v2/models/m/infer", {"inputs": [TENSOR]}),
    "generate": ("/v2/models/m/generate", {"text_input": "x"}),
    "generate_stream": ("/v2/models/m/generate_stream", {"text_input": "x"}),
}


class TestUnloaded:
    @pytest.mark.parametrize("name", CALLS)
    def test_is_404_in_the_shape_of_the_api(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        path, body = CALLS[name]
        monkeypatch.setattr(gateway_server, "UNLOADED_S", 0.2)

        decoupled = name in ("chat", "stream", "completions", "generate_stream")

        @runs
        async def scenario() -> None:
            async with Scene(2, models=("m", "other"), decoupled=decoupled) as scene:
                for each in scene.servicers:
                    each.models.discard("m")
                # The servers are not checked again yet: the request meets what Triton says of such a model.
                response = await scene.http.post(path, json=body)
                assert response.status_code == 404, response.text
                assert sum(scene.sent()) in (1, 2)
                assert "no server has the model 'm'" in sentence(path, response.json())
                assert response.headers["x-request-id"]
                if path.startswith("/v1") and path != "/v1/rerank":
                    assert response.json()["error"]["code"] == "model_not_found"
                    assert response.json()["error"]["param"] == "model"
                if path in ("/embed", "/rerank", "/predict"):
                    assert response.json()["error_type"] == "Validation"
                again = await scene.http.post(path, json=body)
                assert again.status_code == 404

        scenario()

    @pytest.mark.usefixtures("quick_checks")
    @runs
    async def test_a_restart_is_waited_for_and_an_unload_is_not(self) -> None:
        async with Scene(1, models=("m", "n"), supervised=True) as scene:
            supervisor, servicer = scene.supervisors[0], scene.servicers[0]
            supervisor.document |= {"not_ready": {"m": "restarting"}, "restarts": {"m": 1}}
            servicer.models.discard("m")
            await eventually(lambda: "m" not in scene.pool.servers[0].models)
            waiting = asyncio.create_task(scene.http.post("/v2/models/m/infer", json={"inputs": [TENSOR]}))
            checks = servicer.checks
            await eventually(lambda: servicer.checks > checks + 2)
            assert not waiting.done()
            servicer.models.add("m")
            supervisor.document |= {"not_ready": {}}
            assert (await waiting).status_code == 200
            supervisor.document |= {"not_ready": {"m": "restarting"}, "restarts": {"m": 2}}
            servicer.models.discard("m")
            await eventually(lambda: "m" not in scene.pool.servers[0].models)
            waiting = asyncio.create_task(scene.http.post("/v2/models/m/infer", json={"inputs": [TENSOR]}))
            await eventually(lambda: scene.pool.lanes.outstanding().get("m") == 1)
            supervisor.document |= {"not_ready": {}}  # it was unloaded while it restarted
            assert (await waiting).status_code == 404

    @pytest.mark.usefixtures("quick_checks")
    @runs
    async def test_a_server_that_ends_again_before_all_its_models_are_back_is_waited_for(self) -> None:
        async with Scene(1, models=("m", "n"), supervised=True) as scene:
            server = scene.pool.servers[0]
            scene.supervisors[0].document |= {"state": "restarting"}
            scene.servicers[0].models.discard("m")
            await eventually(lambda: "m" not in server.models)
            await scene.stop_server(0)
            await eventually(lambda: not server.up)
            waiting = asyncio.create_task(scene.http.post("/v2/models/m/infer", json={"inputs": [TENSOR]}))
            await eventually(lambda: waiting.done() or scene.pool.lanes.outstanding().get("m") == 1)
            scene.servicers[0].models.add("m")
            await scene.start_server(0)
            response = await waiting
            assert response.status_code == 200, response.text

    @pytest.mark.usefixtures("quick_checks")
    @runs
    async def test_a_supervisor_that_misses_a_report_while_models_load_is_trusted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gateway_server, "_SILENT_S", 60.0)  # however slow the machine is
        async with Scene(1, models=("m", "n"), supervised=True) as scene:
            supervisor, servicer, server = scene.supervisors[0], scene.servicers[0], scene.pool.servers[0]
            restarting = {**supervisor.document, "state": "restarting"}
            supervisor.document = restarting
            await eventually(lambda: server.outages.report.coming)
            servicer.models.discard("m")
            supervisor.document = {}  # no report
            await eventually(lambda: "m" not in server.models)
            checks = servicer.checks
            # Longer than what is missing for it, without a restart, was unloaded.
            until = time.monotonic() + gateway_server.UNLOADED_S + 0.5
            await eventually(lambda: time.monotonic() > until and servicer.checks > checks + 1)
            waiting = asyncio.create_task(scene.http.post("/v2/models/m/infer", json={"inputs": [TENSOR]}))
            await eventually(lambda: waiting.done() or scene.pool.lanes.outstanding().get("m") == 1)
            servicer.models.add("m")
            supervisor.document = restarting
            response = await waiting
            assert response.status_code == 200, response.text

    @runs
    async def test_a_model_that_restarts_since_before_the_gateway_is_unavailable(self) -> None:
        scene = Scene(1, models=("n",), supervised=True)
        scene.supervisors[0].document |= {"not_ready": {"m": "restarting"}}
        async with scene:
            response = await scene.http.post("/v1/embeddings", json={"model": "m", "input": "x"})
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")

    @pytest.mark.usefixtures("quick_checks")
    @runs
    async def test_a_model_of_a_server_that_is_down_is_unavailable_and_another_name_is_not_found(self) -> None:
        async with Scene(2) as scene:
            scene.servicers[1].models = {"n"}
            await eventually(lambda: "m" not in scene.pool.servers[1].models)
            await scene.stop_server(0)
            await eventually(lambda: not scene.pool.servers[0].up)
            # As if it had been down for longer than a restart takes.
            scene.pool.servers[0]._last_up = time.monotonic() - 1000
            response = await scene.http.post("/v1/embeddings", json={"model": "m", "input": "x"})
            assert response.status_code == 503
            assert "no server with the model 'm' is up" in response.json()["error"]["message"]
            assert (await scene.http.post("/v1/embeddings", json={"model": "x", "input": "x"})).status_code == 404
            await scene.start_server(0)
            await eventually(lambda: scene.pool.servers[0].up)
            assert (await scene.http.post("/v2/models/m/infer", json={"inputs": [TENSOR]})).status_code == 200

    @runs
    async def test_a_model_that_is_loaded_again_is_served(self) -> None:
        async with Scene(1, models=("m", "n")) as scene:
            scene.servicers[0].models.discard("m")
            await eventually(lambda: "m" not in scene.pool.servers[0].models)
            scene.servicers[0].models.add("m")
            await eventually(lambda: "m" in scene.pool.servers[0].models)
            assert await scene.infer() == "s0"


#: Method, path, status, whether the path has another method, and a path in the sentence.
UNKNOWN = [
    ("POST", "/v1/embedding", 404, "did you mean '/v1/embeddings'"),
    ("GET", "/v1/embeddings", 405, "does not accept GET; accepted: POST"),
    ("DELETE", "/v1/models/m", 405, "accepted: GET"),
    ("POST", "/v1/reranking", 404, "unknown path"),
    ("GET", "/v1/rerank", 405, "accepted: POST"),
    ("GET", "/v2/rerank", 405, "accepted: POST"),
    ("POST", "/v2/model/m/infer", 404, "unknown path"),
    ("GET", "/v2/models/m/infer", 405, "accepted: POST"),
    ("POST", "/v2/models/m", 405, "accepted: GET"),
    ("POST", "/v2/repository/models/m/unload", 404, "unknown path"),
    ("GET", "/embed", 405, "accepted: POST"),
    ("PUT", "/predict", 405, "accepted: POST"),
    ("POST", "/embed/", 404, "did you mean '/embed'"),
    ("POST", "/nothing", 404, "unknown path"),
]


class TestUnknownPaths:
    @pytest.mark.parametrize(("method", "path", "status", "message"), UNKNOWN)
    def test_are_answered_in_the_shape_of_their_api(self, method: str, path: str, status: int, message: str) -> None:
        @runs
        async def scenario() -> None:
            async with Scene(1) as scene:
                response = await scene.http.request(method, path, json={}, headers={"x-request-id": "mine"})
                assert response.status_code == status, response.text
                api = path if path == "/v2/rerank" or not path.startswith("/embed") else "/embed"
                assert message in sentence(api, response.json())
                assert response.headers["x-request-id"] == "mine"
                if status == 405:
                    assert message.partition("accepted: ")[2] in response.headers["allow"]

        scenario()

    @runs
    async def test_a_head_has_no_body(self) -> None:
        async with Scene(1) as scene:
            response = await scene.http.head("/v2/health/live")
            assert (response.status_code, response.content) == (200, b"")
            assert json.loads((await scene.http.get("/v2")).content)["name"] == "tidal"
