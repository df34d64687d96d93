"""Rules for every PetS engine: it imports the contract only, and runs any kind that is made of the unified terms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tidal.pets.kinds
from testing.truth import Exported, Truth, random_terms
from tests.pets.engine.conftest import VOCABULARY
from tidal.pets.engine.contract import answer
from tidal.pets.kinds.kind import kinds
from tidal.pets.opening import PetsEngineKind, open_pets_engine
from tidal.pets.tasks.folder import add_task, load_task
from tidal.pets.tasks.manifest import Provenance
from tidal.pets.terms import LinearTerms, LowRankDelta, TaskTerms

ENGINE_MODULES = {
    "tidal.pets.openvino_engine.engine": ("torch", "tidal.pets.torch_engine", "tidal.pets.tensorrt_engine"),
    "tidal.pets.torch_engine.engine": ("openvino", "tidal.pets.openvino_engine", "tidal.pets.tensorrt_engine"),
    "tidal.pets.tensorrt_engine.engine": ("openvino", "tidal.pets.openvino_engine"),
}
# A kind in one file: a difference of rank 1, stored as two vectors.
TOY_KIND = '''
"""Outer products."""
import numpy as np
from tidal.pets.kinds.kind import Kind
from tidal.pets.terms import LinearTerms, LowRankDelta

def _read(tensors):
    if not tensors.has("rows"):
        return LinearTerms()
    outputs, inputs = tensors.linear.shape
    rows = tensors.values("rows", (outputs,), "the layer's outputs")
    columns = tensors.values("columns", (inputs,), "the layer's inputs")
    return LinearTerms(delta=LowRankDelta(columns[None], rows[:, None], 1.0))

def _write(terms, layer, storage):
    if terms.delta is None:
        return {}
    rows = terms.delta.scale * terms.delta.up[:, 0]
    return {"rows": storage.values(rows), "columns": storage.values(terms.delta.down[0])}

KIND = Kind("outer", "outer products (a test)", (LowRankDelta,), _read, _write)
'''


@pytest.mark.parametrize("module", ENGINE_MODULES)
def test_an_engine_imports_no_kind_and_no_other_engine(module: str) -> None:
    code = f"import sys; import {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    forbidden = ("tidal.pets.kinds", "tidal.pets.tasks", *ENGINE_MODULES[module])
    assert [name for name in done.stdout.split() if name.startswith(tuple(f"{each}." for each in forbidden))] == []


@pytest.fixture
def toy_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "toy_outer.py").write_text(TOY_KIND)
    monkeypatch.setattr(tidal.pets.kinds, "__path__", [*tidal.pets.kinds.__path__, str(tmp_path / "kinds")])
    kinds.cache_clear()
    yield "outer"
    kinds.cache_clear()
    sys.modules.pop("tidal.pets.kinds.toy_outer", None)


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_a_new_kind_is_one_file(
    engine: PetsEngineKind, toy_kind: str, exported: Callable[..., Exported], tmp_path: Path
) -> None:
    base = exported("bert", engine)
    draw = np.random.default_rng(5)

    def outer(outputs: int, inputs: int) -> LinearTerms:
        columns = draw.normal(size=(1, inputs)).astype(np.float32)
        return LinearTerms(delta=LowRankDelta(columns, draw.normal(size=(outputs, 1)).astype(np.float32), 0.5))

    head = random_terms("bias", base.layers, 0).head
    terms = TaskTerms(head, {path: outer(*layer.shape) for path, layer in base.layers.linear.items()})
    add_task(tmp_path, "toy", toy_kind, terms, base.layers, Provenance(format="trained", source="a test"))
    stored = load_task(tmp_path, "toy", base.layers)
    assert stored.info.kind == toy_kind
    opened = open_pets_engine(engine, base.folder, threads=1, device="cpu")
    ids = draw.integers(1, VOCABULARY, (2, 7))
    found = answer(opened, [opened.add(stored.terms, cost_key=toy_kind)] * 2, ids, np.array([7, 5]))
    truth = Truth(base.model, terms)
    for row, (logits, length) in enumerate(zip(found, (7, 5), strict=True)):
        np.testing.assert_allclose(logits, truth.logits(ids[row, :length].tolist()), atol=1e-4)
