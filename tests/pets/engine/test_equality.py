"""Every row of every batch equals the task's own merged, unmodified model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.truth import KINDS, Exported, Truth, random_terms
from tests.pets.engine.comparing import TOLERANCE, compare
from tests.pets.engine.conftest import ENCODERS, VOCABULARY, Bench, Loaded
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.engine.contract import answer, lanes_of
from tidal.pets.merging import unmerged
from tidal.pets.opening import open_pets_engine
from tidal.pets.openvino_engine.engine import open_openvino_engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_each_type_of_terms_alone(bench: Callable[[str], Bench], encoder: str, kind: str) -> None:
    made = bench(encoder)
    compare(made, [(made.tasks[kind], length) for length in (5, 1, 17)], seed=1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "head"])
def test_terms_change_the_answer(bench: Callable[[str], Bench], kind: str) -> None:
    made = bench("bert")
    ids, lengths = np.full((1, 6), 9), np.asarray([6])
    changed, base = (made.engine.pooled([task], ids, lengths) for task in (made.tasks[kind].task, None))
    assert np.abs(changed - base).max() > 100 * TOLERANCE


def test_all_types_in_one_batch_at_every_level(bench: Callable[[str], Bench], level: str) -> None:
    for encoder in ENCODERS:
        made = bench(encoder)
        rows = [(loaded, 1 + 7 * place % 40) for place, loaded in enumerate(made.tasks.values())]
        compare(made, rows, seed=2, extra=3)


def test_token_types_are_used(bench: Callable[[str], Bench]) -> None:
    made = bench("bert")
    compare(made, [(loaded, 12) for loaded in made.tasks.values()], seed=3, types=True)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 40)), min_size=1, max_size=12),
    encoder=st.sampled_from(sorted(ENCODERS)),
    extra=st.integers(0, 8),
    seed=st.integers(0, 1000),
)
def test_any_mixture_of_tasks_with_any_padding(
    bench: Callable[[str], Bench], rows: list[tuple[str, int]], encoder: str, extra: int, seed: int
) -> None:
    made = bench(encoder)
    compare(made, [(made.tasks[kind], length) for kind, length in rows], seed, extra=extra)


def test_rows_without_a_task_use_the_base(bench: Callable[[str], Bench]) -> None:
    made = bench("bert")
    ids = np.arange(4, 34).reshape(3, 10)
    pooled = made.engine.pooled([None, made.tasks["sparse"].task, None], ids, np.asarray([10, 4, 7]))
    base = Truth(made.base.model, made.tasks["head"].terms)
    np.testing.assert_allclose(pooled[0], base.pooled(ids[0].tolist()), atol=TOLERANCE)
    np.testing.assert_allclose(pooled[2], base.pooled(ids[2, :7].tolist()), atol=TOLERANCE)


def test_padding_is_ignored(bench: Callable[[str], Bench]) -> None:
    made = bench("bert")
    tasks = [loaded.task for loaded in made.tasks.values()]
    ids = np.full((len(tasks), 20), 7)
    lengths = np.arange(len(tasks)) + 3
    padded = ids.copy()
    for row, length in enumerate(lengths):
        padded[row, length:] = 40
    found, same = (answer(made.engine, tasks, each, lengths) for each in (ids, padded))
    for one, other in zip(found, same, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_copy(bench: Callable[[str], Bench], kind: str) -> None:
    made = bench("bert")
    loaded = made.tasks[kind]
    engine = open_openvino_engine(made.base.folder, threads=1, merged=loaded.terms)
    rest = unmerged(loaded.terms)
    copy = Bench(made.base, engine, {})
    assert all(own.delta is None and own.bias is None for own in rest.linear.values())
    same: Any = Loaded(engine.add(rest), loaded.terms, made.base)
    compare(copy, [(same, 9), (same, 2)], seed=4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 40)), min_size=1, max_size=12),
    encoder=st.sampled_from(sorted(ENCODERS)),
    seed=st.integers(0, 1000),
)
def test_lanes_with_one_thread_answer_like_all_threads_and_like_the_source_model(
    laned: Callable[[str], Bench], rows: list[tuple[str, int]], encoder: str, seed: int
) -> None:
    made = laned(encoder)
    wide, *narrow = lanes_of(made.engine)
    assert len(narrow) == 2
    lengths = np.asarray([length for _, length in rows])
    ids = np.random.default_rng(seed).integers(4, VOCABULARY, (len(rows), lengths.max()))
    loaded = [made.tasks[kind] for kind, _ in rows]
    tasks = [each.task for each in loaded]
    expected = wide.run(tasks, ids, lengths).pooled
    with ThreadPoolExecutor(len(narrow)) as threads:  # at once
        found = [each.pooled for each in threads.map(lambda lane: lane.run(tasks, ids, lengths), narrow)]
    for lane in found:
        np.testing.assert_allclose(lane, expected, atol=1e-6, rtol=1e-6)
        for row, (each, (_, length)) in enumerate(zip(loaded, rows, strict=True)):
            head = each.task.head
            np.testing.assert_allclose(
                head.weight @ lane[row] + head.bias, each.truth.logits(ids[row, :length].tolist()), atol=TOLERANCE
            )


def test_a_removed_task_is_refused_by_every_lane(exported: Callable[[str], Exported]) -> None:
    base = exported("bert")
    engine = open_openvino_engine(base.folder, threads=2, narrow=2)
    task = engine.add(random_terms(KINDS[0], base.layers, 1))
    engine.remove(task)
    for lane in lanes_of(engine):
        with pytest.raises(InvalidArgument, match="task was removed"):
            lane.run([task], np.full((1, 4), 5), np.asarray([4]))


def test_other_engines_have_one_lane(exported: Callable[..., Exported]) -> None:
    engine = open_pets_engine("torch", exported("bert", "torch").folder, threads=1, device="cpu")
    assert list(lanes_of(engine)) == [engine]


def test_bf16_answers_are_close(exported: Callable[[str], Exported]) -> None:
    base = exported("wide_bert")
    try:
        engine = open_openvino_engine(base.folder, threads=2, precision="bf16")
    except Unsupported as error:  # by this processor
        pytest.skip(str(error))
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (len(KINDS), 16))
    lengths = np.full(len(KINDS), 16)
    terms = [random_terms(kind, base.layers, seed) for seed, kind in enumerate(KINDS)]
    found = answer(engine, [engine.add(own) for own in terms], ids, lengths)
    for row, own in enumerate(terms):
        expected = Truth(base.model, own).logits(ids[row].tolist())
        assert np.abs(found[row] - expected).max() < 0.05 * max(1.0, np.abs(expected).max())
