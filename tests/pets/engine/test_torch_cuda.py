"""Streams, CUDA graphs and the sparse kernel of the torch engine, with fakes in place of a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import tidal
from testing.truth import Exported, random_terms
from tests.pets.engine.conftest import VOCABULARY
from tidal.pets.torch_engine.bound import SequentialLanes, bind
from tidal.pets.torch_engine.engine import open_torch_engine
from tidal.pets.torch_engine.plan import ROUNDED, TorchBatchPlan, make_plan, power_of_two

ROOT = Path(tidal.__path__[0]).parent.parent


class FakeStream:
    """Records the order in which streams wait for each other."""

    current: FakeStream
    events: list[str]
    made = 0

    def __init__(self) -> None:
        FakeStream.made += 1
        self.name = f"s{FakeStream.made}"

    def wait_stream(self, other: FakeStream) -> None:
        self.events.append(f"{self.name} after {other.name}")

    def synchronize(self) -> None:
        self.events.append(f"{self.name} done")


class FakeGraph:
    """Records the work of a capture and repeats it on replay."""

    capturing: FakeGraph | None = None
    launches = 0

    def __init__(self) -> None:
        self.work: Callable[[], None] = lambda: None

    def replay(self) -> None:
        FakeGraph.launches += 1
        self.work()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`tidal.pets.torch_engine.cuda` with fakes for torch's streams and graphs and for the kernel."""
    FakeStream.made, FakeStream.events = 0, []
    FakeStream.current = FakeStream()
    FakeGraph.launches = 0

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        before, FakeStream.current = FakeStream.current, stream
        yield
        FakeStream.current = before

    @contextmanager
    def capture(graph: FakeGraph, **_: Any) -> Iterator[None]:
        FakeGraph.capturing = graph
        yield
        FakeGraph.capturing = None

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: FakeStream.current)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    name = "tidal.pets.torch_engine.sparse_kernel"
    if find_spec("triton") is None:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    import tidal.pets.torch_engine.cuda as module

    yield module
    sys.modules.pop("tidal.pets.torch_engine.cuda")


def test_parts_run_on_parallel_streams_between_fork_and_join(cuda: ModuleType) -> None:
    lanes = cuda.StreamLanes()
    ran: list[tuple[int, str]] = []
    works = {part: lambda part=part: ran.append((part, FakeStream.current.name)) for part in (0, 2, 5)}
    for _ in range(2):
        lanes.run(works)
    assert ran == [(2, "s2"), (5, "s3"), (0, "s1")] * 2
    assert FakeStream.events == ["s2 after s1", "s3 after s1", "s1 after s2", "s1 after s3"] * 2
    assert FakeStream.made == 3


class Doubling:
    """A forward pass that doubles its input, and counts how often it is built."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.made += 1
        result = numbers * 2
        if FakeGraph.capturing is not None:
            FakeGraph.capturing.work = lambda: torch.mul(numbers, 2, out=result)
        return (result,)


def test_a_layout_is_captured_at_its_second_run(cuda: ModuleType) -> None:
    cache, double = cuda.GraphCache(FakeStream(), torch.device("cpu")), Doubling()
    for value in range(5):
        np.testing.assert_array_equal(cache.run("a", torch.tensor([value, 7]), double)[0], [2 * value, 14])
    assert (double.made, FakeGraph.launches) == (2, 4)
    np.testing.assert_array_equal(cache.run("b", torch.tensor([5]), double)[0], [10])
    assert (double.made, FakeGraph.launches) == (3, 4)


def test_the_least_recently_used_graph_is_evicted(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MAX_GRAPHS", 2)
    cache, double = cuda.GraphCache(FakeStream(), torch.device("cpu")), Doubling()
    for key in "aabbaccbb":
        cache.run(key, torch.tensor([1]), double)
    # Each is built twice, and `b` once more after `c` evicted it.
    assert double.made == 7


def test_the_runner_captures_again_when_the_pools_change(cuda: ModuleType) -> None:
    runner = object.__new__(cuda.CudaRunner)
    runner._stream = FakeStream.current
    runner._lanes = SequentialLanes()
    runner._graphs = cuda.GraphCache(runner._stream, torch.device("cpu"))
    import threading

    runner._running = threading.Lock()
    plan = TorchBatchPlan(make_layout(), np.array([3, 4, 2, 5, 6, 1], np.int64), ())
    seen: list[Any] = []

    def encode(batch: Any, *, all_tokens: bool) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((batch.ids.tolist(), batch.lengths.tolist()))
        return batch.ids.float(), batch.ids.float()[..., None]

    pools = {4: torch.zeros(2, 4)}
    for matrices in (pools, pools, {4: torch.zeros(3, 4)}):
        np.testing.assert_array_equal(runner.run(encode, plan, matrices).pooled, [[3, 4], [2, 5]])
    assert seen == [([[3, 4], [2, 5]], [6, 1])] * 3
    assert FakeGraph.launches == 1


def make_layout() -> Any:
    from tidal.pets.torch_engine.plan import Layout

    return Layout(rows=2, tokens=2, types=False, all_tokens=False, norms=0, parts=())


def test_batches_of_one_layout_differ_only_in_their_numbers(exported: Callable[..., Exported]) -> None:
    """A captured graph relies on it: the numbers of another batch, copied in, give the answers of that batch."""
    base = exported("bert", "torch")
    engine = open_torch_engine(base.folder, threads=1)
    kinds = ("low_rank", "bias", "bottleneck", "norm", "head", "bias", "bias")
    others = [engine.add(random_terms(kind, base.layers, seed=7)) for kind in kinds]

    def plan(seed: int) -> tuple[TorchBatchPlan, Any]:
        draw = np.random.default_rng(seed)
        # The same ranks and other biases, in another order.
        tasks = [
            engine.add(random_terms("bias", base.layers, seed)) if k == "bias" else o
            for k, o in zip(kinds, others, strict=True)
        ]
        order = draw.permutation(len(tasks))
        made, lengths = [tasks[place] for place in order], draw.integers(17, 25, len(tasks))
        ids = draw.integers(4, VOCABULARY, (len(tasks), 24)).astype(np.int32)
        parts = [[row for row, place in enumerate(order) if place % 2 == side] for side in (0, 1)]
        found = make_plan(
            made,
            ids,
            lengths,
            np.zeros_like(ids),
            parts=parts,
            shared_norms=engine._shared_norms,
            longest=48,
            steps=ROUNDED,
        )
        return found, (made, engine.pooled(made, ids, lengths))

    (first, _), (second, (_held, expected)) = plan(1), plan(2)
    assert first.layout == second.layout
    groups = [group for part in first.layout.parts for group in part]
    assert all(group.rank % 8 == 0 for group in groups)
    assert [group.rows for group in groups if group.type == "bias"] == [1, 2]
    numbers = torch.from_numpy(first.numbers.copy())
    with torch.inference_mode():
        numbers.copy_(torch.from_numpy(second.numbers))
        found = engine._encoder(bind(first.layout, numbers, engine._pools.matrices(), MagicMock(), SequentialLanes()))
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_rounding() -> None:
    assert [power_of_two(number) for number in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]


KERNEL = """
import numpy as np, torch
from tidal.pets.engine.description import Description, LinearSpec
from tidal.pets.terms import SparseDelta
from tidal.pets.torch_engine.operators import Site
from tidal.pets.torch_engine.sparse import BlockDiagonal, pack_sparse
from tidal.pets.torch_engine.sparse_kernel import KernelProduct

draw = np.random.default_rng(0)
def delta(outputs, inputs):
    mask = draw.random((outputs, inputs)) < draw.choice([0, 0.1, 0.9], (outputs, 1))
    starts = np.concatenate([[0], mask.sum(1).cumsum()]).astype(np.uint32)
    columns = np.nonzero(mask)[1].astype(np.uint16)
    return SparseDelta(starts, columns, draw.normal(size=len(columns)).astype(np.float32))

sizes = [(5, 19), (3, 7)]
places = [LinearSpec(path=str(n), outputs=o, inputs=i, weight="", bias="") for n, (o, i) in enumerate(sizes)]
shape = Description.model_construct(linear=places)
device = torch.device("cpu")
both, second = {0: delta(5, 19), 1: delta(3, 7)}, {1: delta(3, 7)}
tasks = [pack_sparse(both, shape, device), None, pack_sparse(second, shape, device)]
zeros = torch.zeros(9, dtype=torch.int32)
nothing = np.full((2, 3), zeros.data_ptr())
table = np.stack([nothing if task is None else task.pointers(zeros.data_ptr()) for task in tasks])
addresses = [torch.from_numpy(np.ascontiguousarray(table[..., part].T)) for part in range(3)]
for layer, (outputs, inputs) in enumerate(sizes):
    tokens = torch.from_numpy(draw.normal(size=(3, inputs, 11)).astype(np.float32))
    found = KernelProduct(addresses)(layer, Site(layer, 0, outputs, inputs), tokens)
    np.testing.assert_allclose(found, BlockDiagonal(tasks).product(layer, outputs, tokens), atol=1e-5)
"""


@pytest.mark.skipif(
    find_spec("triton") is None, reason="the Triton language, which torch's CUDA builds bring, is missing"
)
def test_the_kernel_multiplies_each_row_by_its_own_matrix() -> None:
    """Runs in Triton's interpreter, which must be selected before the kernel is imported."""
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
