"""Requests to a model with a full queue: refused before they are checked or read, and nothing else is refused."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.scene import Scene, eventually, runs
from tidal_gateway.api.overload import named_model
from tidal_gateway.keys.store import add_key

TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
INFER = {"inputs": [TENSOR]}
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)


@asynccontextmanager
async def full(scene: Scene, headers: dict[str, str] | None = None) -> AsyncIterator[None]:
    """Fill the queue of model `m`, which has one slot, and refuse one request to it."""
    end = asyncio.Event()
    scene.servicers[0].script.append(end)
    held = asyncio.create_task(scene.http.post("/v2/models/m/infer", json=INFER, headers=headers))
    await eventually(lambda: scene.sent() == [1])
    assert (await scene.http.post("/v2/models/m/infer", json=INFER, headers=headers)).status_code == 429
    assert scene.pool.lanes.full == {"m"}
    yield
    end.set()
    assert (await held).status_code == 200
    assert (await scene.http.post("/v2/models/m/infer", json=INFER, headers=headers)).status_code == 200
    assert scene.pool.lanes.full == set()


class TestFullQueues:
    @runs
    async def test_refuse_before_the_body_is_checked(self) -> None:
        async with Scene(1, models=("m", "n"), max_outstanding=1) as scene:
            wrong = {"model": "m", "input": "a", "colour": "red"}
            assert (await scene.http.post("/v1/embeddings", json=wrong)).status_code == 400
            async with full(scene):
                found = await scene.http.post("/v1/embeddings", json=wrong)
                assert (found.status_code, found.json()["error"]["code"]) == (429, "overloaded")
                assert found.headers["retry-after"] == "1"
                assert scene.sent() == [1]

    @runs
    async def test_refuse_nothing_else(self) -> None:
        async with Scene(1, models=("m", "n"), max_outstanding=1) as scene, full(scene):
            assert (await scene.http.post("/v2/models/n/infer", json=INFER)).status_code == 200
            assert (await scene.http.get("/v2/models/m")).status_code == 200
            assert (await scene.http.get("/v1/models/m")).status_code == 200
            for content in (b"{", b"[1]", b'{"model": 3}', b'{"model": ["m"]}', b'{"input": {"model": "m"}}'):
                assert (await scene.http.post("/v1/embeddings", content=content)).status_code == 400

    @runs
    async def test_refuse_before_the_body_is_read_where_the_path_names_the_model(self) -> None:
        async def receive() -> Any:
            raise AssertionError("the body was read")

        answers: list[Any] = []

        async def send(message: Any) -> None:
            answers.append(message)

        path = "/v2/models/m/infer"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [(b"content-length", b"1000000")], "client": ("127.0.0.1", 1)}
        async with Scene(1, max_outstanding=1) as scene, full(scene):
            await scene.app(scope, receive, send)
            assert answers[0]["status"] == 429

    @runs
    async def test_do_not_tell_a_key_of_models_that_it_may_not_use(self) -> None:
        async with _guarded() as (scene, all_models, others), full(scene, all_models):
            body = {"model": "m", "input": "a"}
            assert (await scene.http.post("/v1/embeddings", json=body, headers=all_models)).status_code == 429
            assert (await scene.http.post("/v1/embeddings", json=body, headers=others)).status_code == 403
            assert (await scene.http.post("/v2/models/m/infer", json=INFER, headers=others)).status_code == 403
            assert (await scene.http.post("/v1/embeddings", json=body)).status_code == 401


@asynccontextmanager
async def _guarded() -> AsyncIterator[tuple[Scene, dict[str, str], dict[str, str]]]:
    """A scene with keys: headers of one for all models, and of one for model `n`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        keys = [add_key(file, "all")[0], add_key(file, "others", models=("n",))[0]]
        first, second = ({"authorization": f"Bearer {key}"} for key in keys)
        async with Scene(1, models=("m", "n"), max_outstanding=1, keys=file) as scene:
            yield scene, first, second


class TestNamedModel:
    @given(st.dictionaries(st.sampled_from(["model", "input", "models"]), JSON) | JSON)
    def test_is_the_field_of_the_document(self, document: Any) -> None:
        field = document.get("model") if isinstance(document, dict) else None
        assert named_model(json.dumps(document).encode()) == (field if isinstance(field, str) else "")

    @pytest.mark.parametrize("body", [b"", b"model=m", b'{"model": "m"', b"\xff"])
    def test_is_empty_without_a_document(self, body: bytes) -> None:
        assert named_model(body) == ""


@runs
async def test_a_classification_asks_for_the_outputs_of_its_answer_only() -> None:
    async with Scene(1) as scene:
        tensor = ("FP32", (-1,))
        names = ["label", "logits", "probabilities", "input_tokens"]
        scene.pool.servers[0].models["m"].outputs.update(dict.fromkeys(names, tensor))  # type: ignore[attr-defined]
        await scene.http.post("/v1/classify", json={"model": "m", "input": "a"})
        (sent,) = scene.servicers[0].received
        assert [each.name for each in sent.outputs] == ["label", "probabilities", "input_tokens"]
