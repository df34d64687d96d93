"""Adding and removing tasks: what is refused, their memory, and changes while batches run."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.truth import Exported, random_terms
from tests.pets.engine.conftest import VOCABULARY, Bench
from tidal import compiling
from tidal.errors import InvalidArgument, NotFound
from tidal.flover.native import library as decoder_library
from tidal.pets.engine.contract import PetsLane, answer
from tidal.pets.openvino_engine import build as building
from tidal.pets.openvino_engine import native
from tidal.pets.openvino_engine.engine import OpenVinoPetsEngine, open_openvino_engine
from tidal.pets.terms import Bottleneck, Head, LinearTerms, LowRankDelta, NormTerms, SparseDelta, TaskTerms

QUERY = "encoder.layer.0.attention.self.query"  # [36, 36] in the tiny BERT


@pytest.fixture
def engine(bench: Callable[[str], Bench]) -> OpenVinoPetsEngine:
    return bench("bert").engine


def head(classes: int = 2, width: int = 36) -> Head:
    return Head(np.zeros((classes, width), np.float32), np.zeros(classes, np.float32), ("a", "b"))


def at_query(**own: Any) -> TaskTerms:
    return TaskTerms(head(), {QUERY: LinearTerms(**own)})


def sparse(starts: Any = None, columns: Any = (3,), values: Any = (1.0,)) -> SparseDelta:
    starts = [0] + [1] * 36 if starts is None else starts
    return SparseDelta(np.asarray(starts, np.uint32), np.asarray(columns, np.uint16), np.asarray(values, np.float32))


def zeros(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (TaskTerms(head(), {QUERY + "y": LinearTerms()}), f"no linear layer '{QUERY}y': did you mean '{QUERY}'"),
        (TaskTerms(head(), {}, {"pooler.dense": NormTerms(zeros(36), zeros(36))}), "no normalisation 'pooler.dense'"),
        (TaskTerms(head(width=35)), "shapes (2, 35) and (2,); accepted for task classification are (2, 36)"),
        (TaskTerms(head(classes=3)), "shapes (3, 36) and (3,); accepted for task classification are (2, 36)"),
        (at_query(bias=zeros(35)), f"bias at '{QUERY}' is float32 (35,); the base accepts float32 (36,)"),
        (at_query(bias=np.zeros(36)), "is float64 (36,)"),
        (at_query(delta=sparse(columns=[36])), "a column of the sparse difference at"),
        (at_query(delta=sparse(starts=[0] + [2] * 36)), "must ascend from 0 to 1, the number of its values"),
        (at_query(delta=sparse(starts=[0, 1, 0] + [1] * 34)), "must ascend from 0"),
        (at_query(delta=sparse(starts=[0, 1])), "have shapes (2,) and (1,)"),
        (at_query(delta=sparse(columns=[1, 2])), "have shapes (37,) and (2,)"),
        (at_query(delta=SparseDelta(np.zeros(37, np.int64), np.zeros(0, np.uint16), zeros(0))), "int64"),  # type: ignore[arg-type]
        (at_query(delta=LowRankDelta(zeros(4, 36), zeros(36, 3), 1.0)), "up of the low-rank difference"),
        (
            at_query(bottleneck=Bottleneck(zeros(4, 35), zeros(4), zeros(36, 4), zeros(36), "relu")),
            "down of the bottle",
        ),
        (at_query(bottleneck=Bottleneck(zeros(4, 36), zeros(4), zeros(36, 4), zeros(36), "tanh")), "accepted: gelu"),  # type: ignore[arg-type]
        (TaskTerms(head(), {}, {"embeddings.LayerNorm": NormTerms(zeros(36), zeros(1))}), "bias at 'embeddings.Layer"),
    ],
)
def test_terms_that_do_not_fit_are_refused(engine: OpenVinoPetsEngine, terms: TaskTerms, message: str) -> None:
    before = native.bytes_in_use()
    with pytest.raises(InvalidArgument) as error:
        engine.add(terms)
    assert message in str(error.value)
    assert native.bytes_in_use() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": np.zeros((1, 49), int)}, "accepted is [rows, 1 to 48]"),
        ({"ids": np.zeros((0, 4), int), "lengths": np.zeros(0, int)}, "accepted is [rows, 1 to 48]"),
        ({"ids": np.full((1, 4), VOCABULARY)}, f"ids are {VOCABULARY} to {VOCABULARY}, accepted are 0 to 59"),
        ({"ids": np.full((1, 4), -1)}, "ids are -1 to -1"),
        ({"ids": np.zeros((1, 4))}, "ids are float64"),
        ({"lengths": np.asarray([5])}, "lengths are 5 to 5, accepted are 1 to 4"),
        ({"lengths": np.asarray([0])}, "lengths are 0 to 0"),
        ({"lengths": np.asarray([1, 1])}, "do not fit 1 rows"),
        ({"type_ids": np.full((1, 4), 2)}, "type_ids are 2 to 2, accepted are 0 to 1"),
        ({"type_ids": np.zeros((1, 3), int)}, "type_ids have shape (1, 3)"),
    ],
)
def test_batches_that_cannot_run_are_refused(engine: OpenVinoPetsEngine, change: dict[str, Any], message: str) -> None:
    arguments = {"tasks": [engine.add(TaskTerms(head()))], "ids": np.zeros((1, 4), int), "lengths": np.asarray([4])}
    arguments["tasks"] = arguments["tasks"][: len(change.get("ids", [0]))]
    with pytest.raises(InvalidArgument) as error:
        answer(engine, **{**arguments, **change})
    assert message in str(error.value)


def test_memory_is_counted_and_freed(exported: Callable[[str], Exported], engine: OpenVinoPetsEngine) -> None:
    terms = random_terms("everything", exported("bert").layers, seed=1)
    before = native.bytes_in_use()
    task = engine.add(terms)
    taken = native.bytes_in_use() - before
    assert taken + terms.head.weight.nbytes + terms.head.bias.nbytes == task.bytes
    # Packing pads small layers, a bottleneck of width 1 most of all.
    assert terms.bytes < task.bytes < 6 * terms.bytes
    engine.remove(task)
    engine.remove(task)
    assert native.bytes_in_use() == before
    forgotten = engine.add(terms)
    del forgotten
    assert native.bytes_in_use() == before


def test_removed_task_is_refused(engine: OpenVinoPetsEngine) -> None:
    task = engine.add(TaskTerms(head()))
    engine.remove(task)
    with pytest.raises(InvalidArgument, match="task was removed"):
        answer(engine, [task], np.zeros((1, 4), int), np.asarray([4]))


def test_terms_are_copied(exported: Callable[[str], Exported], engine: OpenVinoPetsEngine) -> None:
    terms = random_terms("everything", exported("bert").layers, seed=2)
    ids, lengths = np.full((1, 6), 8), np.asarray([6])
    task = engine.add(terms)
    before = answer(engine, [task], ids, lengths)[0]
    terms.head.weight[:] = 0
    for own in terms.linear.values():
        if own.bias is not None:
            own.bias[:] = 7
    np.testing.assert_array_equal(answer(engine, [task], ids, lengths)[0], before)


def test_tasks_are_added_and_removed_while_batches_run(exported: Callable[[str], Exported]) -> None:
    """Three lanes run batches, one of them in two contexts; each task is removed right after its batch has started."""
    base = exported("bert")
    engine = open_openvino_engine(base.folder, threads=1, contexts=2, narrow=2)
    before = native.bytes_in_use()
    kept = [engine.add(random_terms("everything", base.layers, seed)) for seed in range(3)]
    ids, lengths = np.random.default_rng(0).integers(4, VOCABULARY, (9, 20)), np.full(9, 20)
    expected = engine.pooled(kept * 3, ids, lengths)
    stop, wrong = threading.Event(), []

    def serve(lane: PetsLane) -> None:
        while not stop.is_set():
            found = lane.run(kept * 3, ids, lengths).pooled
            if not np.allclose(found, expected, atol=1e-5):
                wrong.append(found)

    def change() -> None:
        terms = random_terms("everything", base.layers, seed=9)
        right = None
        for _ in range(40):
            passing = engine.add(terms)
            remover = threading.Thread(target=engine.remove, args=[passing])
            try:
                remover.start()
                found = answer(engine, [passing] * 9, ids, lengths)
            except InvalidArgument:  # it was removed before its batch started
                found = None
            remover.join()
            if found is not None:
                right = found if right is None else right
                wrong.extend(one for one, other in zip(found, right, strict=True) if not np.allclose(one, other))

    threads = [threading.Thread(target=serve, args=[lane]) for lane in engine.lanes]
    for thread in threads:
        thread.start()
    change()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    for task in kept:
        engine.remove(task)
    assert native.bytes_in_use() == before


def test_a_task_with_only_a_head_leaves_the_encoder_unchanged(engine: OpenVinoPetsEngine) -> None:
    plain = engine.add(replace(TaskTerms(head()), head=head()))
    ids, lengths = np.full((1, 5), 11), np.asarray([5])
    np.testing.assert_array_equal(engine.pooled([plain], ids, lengths), engine.pooled([None], ids, lengths))


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "library_path", lambda: tmp_path / "build" / "libtidal_pets-0.so")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFound, match=r"g\+\+ is missing.*install g\+\+"):
        building.build()


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "library_path", lambda: tmp_path / "libtidal_pets-0.so")
    native.library.cache_clear()
    try:
        with pytest.raises(NotFound, match=r"is not built: run 'python -m tidal\.pets\.openvino_engine\.build'"):
            native.library()
    finally:
        native.library.cache_clear()


def test_unreadable_files_are_refused(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"encoder\.json cannot be read"):
        open_openvino_engine(tmp_path, threads=1)
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"encoder\.json is not valid: digest"):
        open_openvino_engine(tmp_path, threads=1)
    (tmp_path / "encoder.json").write_bytes((exported("bert").folder / "encoder.json").read_bytes())
    (tmp_path / "encoder.xml").write_text("<net")
    with pytest.raises(InvalidArgument, match="is not a readable graph"):
        open_openvino_engine(tmp_path, threads=1)


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="kernels 'avx1024' do not run here"):
        native.choose_kernels("avx1024")


def test_a_changed_shared_header_requires_a_new_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = native.library_path(), decoder_library.library_path()
    headers = tmp_path / "native"
    shutil.copytree(compiling.shared_headers(), headers)
    for module in (compiling, decoder_library):
        monkeypatch.setattr(module, "shared_headers", lambda: headers)
    assert (native.library_path(), decoder_library.library_path()) == before
    (headers / "vectors.hpp").write_text("// changed")
    assert native.library_path() != before[0]
    assert decoder_library.library_path() != before[1]
