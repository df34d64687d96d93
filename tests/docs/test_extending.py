"""The examples of docs/extending.md do what the page says, but for the backend, which needs a server."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as messages
from typer.testing import CliRunner

import tidal.pets.kinds
from testing.models import make_tiny_classifier
from testing.small_base import dense, random_task, small_base
from tests.docs.blocks import blocks_of
from tests.docs.extending import PAGE, examples
from tests.pets.policies.pools import any_pool, any_tables
from tests.tabi.builders.command import tidal_build
from tidal.catalog.manifests import MANIFESTS, load_published
from tidal.encoder_tasks import TASKS, task_entry
from tidal.engines import Artifact, compile_engine, open_engines
from tidal.engines.entries import ENGINES
from tidal.pets.kinds.kind import find_kind, kinds
from tidal.pets.kinds.stored import read_terms, write_terms
from tidal.pets.tasks.folder import load_task
from tidal.tasks.stored import Storage
from tidal_builders.arlo.source import load_source
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.encoder_tasks.detect import choose_task
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.kinds import KINDS
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.description import openapi
from tidal_gateway.edge.exchange import Exchange
from tidal_gateway.settings import GatewaySettings
from tidal_gateway.upstream.models import ModelFacts


def module_of(code: str, name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """The example as the module that the page says it is."""
    module = ModuleType(name)
    patch.setitem(sys.modules, name, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    return module


def test_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, entry = examples("An engine")
    module_of(module, "tidal.engines.scripted", monkeypatch)
    monkeypatch.setattr("tidal.engines.entries.ENGINES", ENGINES)
    try:
        exec(compile(entry, str(PAGE), "exec"), {})

        class Double(torch.nn.Module):
            def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"logits": ids.float() * 2}

        shapes, ids = {"ids": (2, 3)}, np.arange(6).reshape(2, 3)
        compile_engine("scripted", Double(), tmp_path, precision="fp32", shapes=shapes, example={"ids": ids})
        artifact = Artifact("scripted", tmp_path / "model.jit", "fp32", shapes)
        first, second = open_engines(artifact, contexts=2)
        np.testing.assert_array_equal(first.run({"ids": ids})["logits"], ids * 2)
        np.testing.assert_array_equal(second.run({"ids": ids + 1})["logits"], ids * 2 + 2)
    finally:
        ENGINES.pop("scripted", None)


def test_a_task_of_encoders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    head, entries = examples("A task of encoders")
    module_of(head, "tidal.encoder_tasks.rating", monkeypatch)
    source = make_tiny_classifier(tmp_path / "source", labels=("one", "two", "three", "four"))
    try:
        exec(compile(entries, str(PAGE), "exec"), {})
        assert choose_task(source, "auto", "arlo") == "classification"
        assert ArloSpec(kind="arlo", name="m", model="./m", task="rating").task == "rating"
        loaded = load_source(source, choose_task(source, "rating", "arlo"), PrepareOptions())
        row = {name: np.asarray(loaded.tokenizer("a good film")[name]) for name in loaded.tokenizer.model_input_names}
        logits = loaded.outputs(row, attention=False)["logits"]
        batch = task_entry("rating").open_head({}, loaded.prepared.labels).batch({"logits": logits[None]})
        powers = np.exp(logits.astype(np.float64))
        assert batch["rating"][0, 0] == pytest.approx((powers * [1, 2, 3, 4]).sum() / powers.sum(), rel=1e-5)
    finally:
        TASKS.pop("rating", None)
        BUILD_TASKS.pop("rating", None)


def test_a_pet_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (module,) = examples("A PET kind")
    (tmp_path / "adalora.py").write_text(module)
    monkeypatch.setattr(tidal.pets.kinds, "__path__", [*tidal.pets.kinds.__path__, str(tmp_path)])
    kinds.cache_clear()
    try:
        base = small_base()
        terms = random_task("lora", base)
        kind = find_kind("adalora")
        found = read_terms(kind, write_terms(kind, terms, base, Storage()), terms.head, base)
        for path, change in terms.linear.items():
            shape = base.linear[path].shape
            restored = dense(found.linear[path].delta, shape)
            np.testing.assert_allclose(restored, dense(change.delta, shape), rtol=1e-5, atol=1e-6)
    finally:
        kinds.cache_clear()
        sys.modules.pop("tidal.pets.kinds.adalora", None)


@given(st.data())
def test_a_scheduling_policy(data: st.DataObject) -> None:
    (code,) = examples("A scheduling policy")
    namespace: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), namespace)
    tables, pool = data.draw(any_tables()), data.draw(any_pool())
    plan = namespace["by_length"](pool, tables)
    assert sorted(place for batch in plan for place in batch.tolist()) == list(range(len(pool)))
    for batch in plan:
        assert np.isfinite(tables.shared[pool.lengths[batch].max(), len(batch)])


def test_a_buildable_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest, module, entry = examples("A buildable kind")
    module_of(manifest, "tidal.note", monkeypatch)
    module_of(module, "tidal_builders.note", monkeypatch)
    try:
        exec(compile(entry, str(PAGE), "exec"), {})
        spec, repository = tmp_path / "note.yaml", tmp_path / "repository"
        spec.write_text("{kind: note, name: greeting, text: hello}\n")
        built = tidal_build(spec, "--repository", repository, "--json")
        assert built.code == 0, built.stderr
        assert json.loads(built.stdout)["models"][0]["characters"] == 5
        assert (repository / "greeting/1/note.txt").read_text() == "hello"
        assert load_published(repository / "greeting/1").model_dump()["characters"] == 5
        assert tidal_build(spec, "--repository", repository, "--check").code == 0
        spec.write_text("{kind: note, name: greeting, text: hello again}\n")
        assert tidal_build(spec, "--repository", repository, "--check").code == 1
    finally:
        KINDS.pop("note", None)
        MANIFESTS.pop("note", None)


def test_a_task_head(tmp_path: Path) -> None:
    (code,) = examples("A task head")
    namespace: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), namespace)
    base, draw = small_base(), np.random.default_rng(0)
    centres = draw.normal(size=(3, base.width)).astype(np.float32) * 5
    classes = draw.integers(0, 3, 60)
    vectors = centres[classes] + draw.normal(size=(60, base.width)).astype(np.float32) * 0.1
    namespace["add_head"](tmp_path / "tasks", "colour", base, vectors, classes, ["red", "green", "blue"])
    head = load_task(tmp_path / "tasks", "colour", base).terms.head
    assert head.labels == ("red", "green", "blue")
    assert ((vectors @ head.weight.T + head.bias).argmax(axis=1) == classes).all()


def test_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (code,) = examples("A command")
    module_of(code, "tidal.commands.size", monkeypatch)
    (toml,) = (block.text for block in blocks_of(PAGE) if block.language == "toml")
    ((name, value),) = re.findall(r'^(\w+) = "(\S+)"$', toml, re.MULTILINE)
    command = EntryPoint(name, value, "tidal.commands").load()
    app = typer.Typer()
    app.command()(command)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "file").write_bytes(b"12345")
    done = CliRunner().invoke(app, [str(tmp_path / "models")])
    assert (done.exit_code, done.stdout) == (0, "5\n")
    assert CliRunner().invoke(app, [str(tmp_path / "none")]).exit_code == 1


def test_an_api_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's function answers a request over a model that counts the words of each row."""
    (code,) = examples("An API route")
    module = module_of(code, "tidal_gateway.api.counting", monkeypatch)
    facts = ModelFacts("m", ("1",), {}, {"input_tokens": ("INT32", (-1, 1))}, max_rows=64)

    class WordCounter:
        lanes = SimpleNamespace(check=lambda _model: None)

        async def model(self, name: str, allows: Callable[[str], bool]) -> ModelFacts:
            return facts

        async def infer(self, outgoing: Any) -> Any:
            length, texts = outgoing.message.raw_input_contents[0], []
            while length:
                size = int.from_bytes(length[:4], "little")
                texts.append(length[4 : 4 + size])
                length = length[4 + size :]
            answer = messages.ModelInferResponse()
            answer.outputs.add(name="input_tokens", datatype="INT32", shape=[len(texts), 1])
            answer.raw_output_contents.append(np.array([len(each.split()) for each in texts], np.int32).tobytes())
            return answer

    gateway: Any = SimpleNamespace(pool=WordCounter(), settings=GatewaySettings())
    body = json.dumps({"model": "m", "input": ["a b", "c"]}).encode()
    exchange = Exchange("id", "POST", "/v1/count", "")
    answer = asyncio.run(module.COUNT.answer(ApiRequest(gateway, exchange, None, {}, body, {})))
    assert json.loads(answer.content) == {"tokens": [2, 1]}
    assert exchange.input_tokens == 3
    assert "/v1/count" in openapi([module.COUNT])["paths"]
