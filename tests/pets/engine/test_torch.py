"""The torch engine: every row of every batch equals the task's own model, however operators are spread over streams."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.truth import KINDS, Exported, Truth, random_terms
from tests.pets.engine.comparing import TOLERANCE, compare
from tests.pets.engine.conftest import ENCODERS, VOCABULARY, Bench, Loaded, load_tasks
from tidal.device import has_gpu
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.contract import answer
from tidal.pets.merging import unmerged
from tidal.pets.torch_engine.engine import TorchPetsEngine, open_torch_engine
from tidal.pets.torch_engine.plan import EXACT, ROUNDED
from tidal.pets.torch_engine.runners import CpuRunner

Export = Callable[..., Exported]
Make = Callable[[str], Bench]
# All types of terms, some of them twice, with unsorted lengths.
ROWS = [(KINDS[place % len(KINDS)], 1 + 13 * place % 40) for place in range(11)]


@pytest.fixture(scope="module")
def torch_bench(exported: Export) -> Make:
    made: dict[str, Bench] = {}

    def make(name: str) -> Bench:
        if name not in made:
            base = exported(name, "torch")
            made[name] = load_tasks(open_torch_engine(base.folder, threads=1), base)
        return made[name]

    return make


@pytest.fixture
def engine(torch_bench: Make) -> TorchPetsEngine:
    found: TorchPetsEngine = torch_bench("bert").engine
    return found


def in_parts(engine: TorchPetsEngine, parts: int, rounded: bool) -> None:
    """Spread the tasks of a batch over `parts` streams; `rounded` rounds sizes as on a GPU."""
    engine.assign = lambda operators: [place % parts for place in range(len(operators))]
    engine._runner = CpuRunner(ROUNDED if rounded else EXACT)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_all_types_of_terms_in_one_batch(torch_bench: Make, encoder: str, parts: int, rounded: bool) -> None:
    made = torch_bench(encoder)
    in_parts(made.engine, parts, rounded)
    compare(made, [(made.tasks[kind], length) for kind, length in ROWS], seed=1, extra=3)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 40)), min_size=1, max_size=12),
    encoder=st.sampled_from(sorted(ENCODERS)),
    extra=st.integers(0, 8),
    parts=st.integers(1, 5),
    rounded=st.booleans(),
)
def test_any_mixture_of_tasks_with_any_padding(
    torch_bench: Make, rows: list[tuple[str, int]], encoder: str, extra: int, parts: int, rounded: bool
) -> None:
    made = torch_bench(encoder)
    in_parts(made.engine, parts, rounded)
    compare(made, [(made.tasks[kind], length) for kind, length in rows], seed=2, extra=extra)


def test_token_types_are_used(torch_bench: Make) -> None:
    made = torch_bench("bert")
    compare(made, [(loaded, 12) for loaded in made.tasks.values()], seed=3, types=True)


def test_rows_without_a_task_use_the_base(torch_bench: Make) -> None:
    made = torch_bench("bert")
    ids = np.arange(4, 34).reshape(3, 10)
    pooled = made.engine.pooled([None, made.tasks["norm"].task, None], ids, np.asarray([10, 4, 7]))
    base = Truth(made.base.model, made.tasks["head"].terms)
    np.testing.assert_allclose(pooled[0], base.pooled(ids[0].tolist()), atol=TOLERANCE)
    np.testing.assert_allclose(pooled[2], base.pooled(ids[2, :7].tolist()), atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["everything", "bottleneck"])
def test_merged_copy(torch_bench: Make, kind: str) -> None:
    made = torch_bench("bert")
    loaded = made.tasks[kind]
    engine = open_torch_engine(made.base.folder, threads=1, merged=loaded.terms)
    rest: Any = Loaded(engine.add(unmerged(loaded.terms)), loaded.terms, made.base)
    compare(Bench(made.base, engine, {}), [(rest, 9), (rest, 2)], seed=4)


def test_memory_is_counted_and_reused(torch_bench: Make, exported: Export) -> None:
    engine = open_torch_engine(exported("bert", "torch").folder, threads=1)
    terms = random_terms("everything", exported("bert", "torch").layers, seed=5)
    first = engine.add(terms)
    assert terms.bytes / 2 < first.bytes < 2 * terms.bytes
    sizes = {length: len(matrix) for length, matrix in engine._pools.matrices().items()}
    engine.remove(first)
    engine.remove(first)
    with pytest.raises(InvalidArgument, match="task was removed"):
        answer(engine, [first], np.zeros((1, 4), int), np.asarray([4]))
    for _ in range(3):
        forgotten = engine.add(terms)
        del forgotten
    assert {length: len(matrix) for length, matrix in engine._pools.matrices().items()} == sizes


def test_tasks_are_added_and_removed_while_batches_run(exported: Export) -> None:
    """Pool rows of a removed task are overwritten by the next one, and the pools grow meanwhile."""
    base = exported("bert", "torch")
    engine = open_torch_engine(base.folder, threads=1)
    kept = load_tasks(engine, base)
    rows = [loaded.task for loaded in kept.tasks.values()]
    ids, lengths = np.random.default_rng(0).integers(4, VOCABULARY, (len(rows), 12)), np.full(len(rows), 12)
    expected = engine.pooled(rows, ids, lengths)
    passing = random_terms("everything", base.layers, seed=9)
    right = engine.pooled([engine.add(passing)] * len(rows), ids, lengths)
    stop, wrong = threading.Event(), []

    def serve() -> None:
        while not stop.is_set():
            wrong.append(not np.allclose(engine.pooled(rows, ids, lengths), expected, atol=1e-5))

    def add_and_remove() -> None:
        task = engine.add(passing)
        remover = threading.Thread(target=engine.remove, args=[task])
        try:
            remover.start()
            wrong.append(not np.allclose(engine.pooled([task] * len(rows), ids, lengths), right, atol=1e-5))
        except InvalidArgument:  # it was removed before its batch started
            pass
        remover.join()

    server = threading.Thread(target=serve)
    server.start()
    held = []
    for _ in range(10):
        add_and_remove()
        held.append(engine.add(passing))
    stop.set()
    server.join()
    assert not any(wrong)
    assert len(engine._held) == 0


def test_a_removed_task_is_freed_after_its_last_batch(torch_bench: Make, engine: TorchPetsEngine) -> None:
    task = engine.add(random_terms("bias", torch_bench("bert").base.layers, 0))
    with engine._held.using([task, None, task]), engine._held.using([task]):
        engine.remove(task)
        assert not task.removed
        with pytest.raises(InvalidArgument, match="task was removed"), engine._held.using([task]):
            pass
        assert not task.removed
    assert task.removed
    assert len(engine._held) == 0


def test_terms_are_copied(torch_bench: Make, engine: TorchPetsEngine) -> None:
    terms = random_terms("everything", torch_bench("bert").base.layers, seed=2)
    ids, lengths = np.full((1, 6), 8), np.asarray([6])
    task = engine.add(terms)
    before = answer(engine, [task], ids, lengths)[0]
    terms.head.weight[:] = 0
    for own in terms.linear.values():
        if own.bias is not None:
            own.bias[:] = 7
    np.testing.assert_array_equal(answer(engine, [task], ids, lengths)[0], before)


def test_tasks_and_ids_that_do_not_fit_are_refused(
    torch_bench: Make, engine: TorchPetsEngine, exported: Export
) -> None:
    with pytest.raises(InvalidArgument, match="the base has no linear layer"):
        engine.add(random_terms("bias", exported("distilbert").layers, 0))
    with pytest.raises(InvalidArgument, match="ids are 60 to 60, accepted are 0 to 59"):
        engine.pooled([None], np.full((1, 4), VOCABULARY), np.asarray([4]))


def test_tasks_of_another_engine_are_refused(
    torch_bench: Make, bench: Callable[[str], Bench], engine: TorchPetsEngine
) -> None:
    ids, lengths = np.full((1, 4), 5), np.asarray([4])
    native, own = bench("bert"), torch_bench("bert")
    with pytest.raises(InvalidArgument, match="a NativeTask is of another engine"):
        answer(engine, [native.tasks["bias"].task], ids, lengths)
    with pytest.raises(InvalidArgument, match="a TorchTask is of another engine"):
        answer(native.engine, [own.tasks["bias"].task], ids, lengths)


def test_unreadable_files_and_a_missing_gpu_are_named(exported: Export, tmp_path: Path) -> None:
    base = exported("bert", "torch")
    (tmp_path / "encoder.json").write_bytes((exported("bert").folder / "encoder.json").read_bytes())
    with pytest.raises(InvalidArgument, match=r"encoder\.safetensors cannot be read: No such file"):
        open_torch_engine(tmp_path, threads=1)
    (tmp_path / "encoder.safetensors").write_bytes((base.folder / "encoder.safetensors").read_bytes())
    with pytest.raises(InvalidArgument, match="has no encoder for torch"):
        open_torch_engine(tmp_path, threads=1)
    if not torch.cuda.is_available():
        with pytest.raises(Unsupported, match="finds no GPU here"):
            open_torch_engine(base.folder, threads=1, device="gpu")


@pytest.mark.gpu
@pytest.mark.skipif(not (has_gpu() and torch.cuda.is_available()), reason="there is no GPU here, or no torch for it")
@pytest.mark.parametrize("parts", [1, 3])
def test_all_types_of_terms_on_a_gpu(exported: Export, parts: int) -> None:
    base = exported("bert", "torch")
    made = load_tasks(open_torch_engine(base.folder, threads=1, device="gpu"), base)
    made.engine.assign = lambda operators: [place % parts for place in range(len(operators))]
    # A layout is captured at its second run, then replayed with other tokens; and again once the pools grow.
    for seed in range(4):
        compare(made, [(made.tasks[kind], length) for kind, length in ROWS], seed=seed)
    held = [made.engine.add(random_terms("everything", base.layers, seed)) for seed in range(20)]
    for seed in range(4):
        compare(made, [(made.tasks[kind], length) for kind, length in ROWS], seed=seed)
    for task in held:
        made.engine.remove(task)
