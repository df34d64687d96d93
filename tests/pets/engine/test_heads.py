"""Heads of every task: right for each row whatever else is in its batch, and refused if they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.small_base import WIDTH
from testing.task_heads import HEAD_TASKS, expected, random_head
from testing.truth import KINDS, Exported, Truth, random_terms
from tests.pets.engine.conftest import VOCABULARY, Bench
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.heads import POOLED, POOLINGS, HeadRows, check_head, computed, head_reads
from tidal.pets.merging import unmerged
from tidal.pets.opening import open_pets_engine
from tidal.pets.terms import Head, TaskTerms
from tidal.pets.vocabulary import VocabularyForm, VocabularyHead

TOLERANCE = 2e-4
FORM = VocabularyForm(words=50, tied=True, activation="gelu", epsilon=1e-5)
Row = tuple[str, str, int, int]  # type of terms, task of the head, tokens, seed


def head_of(bench: Bench, task: str, seed: int) -> Head:
    """A random head of a task for the bench's encoder."""
    return random_head(task, bench.base.layers.width, seed, words=VOCABULARY)


def answers(bench: Bench, rows: list[Row], ids: Any) -> list[Any]:
    """What the heads of all rows compute from one batch of the encoder."""
    lengths = np.asarray([length for _, _, length, _ in rows])
    heads = [head_of(bench, task, seed) for _, task, _, seed in rows]
    every = any(head_reads(head) == "tokens" for head in heads)
    outputs = bench.engine.run([bench.tasks[kind].task for kind, *_ in rows], ids, lengths, all_tokens=every)
    loaded = [bench.engine.add(TaskTerms(head)) for head in heads]
    own = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    found = [computed(task.head, outputs, [row], lengths[[row]], [own[row]])[0] for row, task in enumerate(loaded)]
    for task in loaded:
        bench.engine.remove(task)
    return [value[:length] if value.ndim == 2 else value for value, length in zip(found, lengths, strict=True)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from(HEAD_TASKS), st.integers(1, 40), st.integers(0, 3)),
        min_size=1,
        max_size=10,
    ),
    seed=st.integers(0, 1000),
)
def test_a_rows_answer_does_not_depend_on_its_batch(bench: Callable[[str], Bench], rows: list[Row], seed: int) -> None:
    made = bench("bert")
    ids = np.random.default_rng(seed).integers(4, VOCABULARY, (len(rows), max(row[2] for row in rows)))
    together = answers(made, rows, ids)
    for number, row in enumerate(rows):
        own = ids[number : number + 1, : row[2]]
        (alone,) = answers(made, [row], own)
        np.testing.assert_allclose(together[number], alone, atol=TOLERANCE, rtol=0)
        head = head_of(made, row[1], row[3])
        wanted = expected(made.tasks[row[0]].truth, head, own[0].tolist())
        np.testing.assert_allclose(together[number], wanted, atol=5 * TOLERANCE, rtol=1e-4)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("pooling", [*((mode,) for mode in POOLINGS), ("cls", "mean")])
def test_every_pooling(bench: Callable[[str], Bench], pooling: tuple[str, ...], normalized: bool) -> None:
    made = bench("roberta")
    ids, lengths = np.random.default_rng(3).integers(4, VOCABULARY, (3, 12)), np.asarray([12, 1, 7])
    head = random_head("embedding", made.base.layers.width, 0 if normalized else 1, pooling)
    assert head.settings["normalized"] is normalized
    tasks = [made.tasks[kind].task for kind in ("low_rank", "after_norm", "head")]
    outputs = made.engine.run(tasks, ids, lengths, all_tokens=head_reads(head) == "tokens")
    assert head_reads(head) == ("first" if pooling == ("cls",) else "tokens")
    found = computed(head, outputs, range(3), lengths)
    for row, kind in enumerate(("low_rank", "after_norm", "head")):
        wanted = expected(made.tasks[kind].truth, head, ids[row, : lengths[row]].tolist())
        np.testing.assert_allclose(found[row], wanted, atol=TOLERANCE, rtol=1e-4)


def test_classifications_alone_run_the_last_block_for_first_tokens_only(bench: Callable[[str], Bench]) -> None:
    made = bench("bert")
    outputs = made.engine.run([None], np.full((1, 9), 5), np.asarray([9]))
    assert outputs.hidden.shape == (1, 1, made.base.layers.width)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": "regression", "labels": ()}, "the head has 0 labels; a head of task regression needs labels"),
        ({"task": "rerank"}, "the head has 3 labels; a head of task rerank has no labels"),
        ({"labels": ("one",)}, "the head has one label, 'one', and the task classification; one output is a score"),
        ({"labels": ("a", "b")}, r"have the shapes \(3, 16\) and \(3,\); accepted for task classification are \(2, 16"),
        ({"task": "fill-masks"}, "unknown task 'fill-masks' of a head: did you mean 'fill-mask'"),
        ({"task": "fill-mask"}, "the head has 3 labels; a head of task fill-mask has no labels"),
        ({"task": "sparse-embedding", "labels": ()}, "sparse-embedding needs the layers before its scores of words"),
        ({"vocabulary": VocabularyHead.empty(FORM, WIDTH)}, "classification does not score the words of a vocabulary"),
        ({"settings": {"surprise": 1}}, "the settings of task classification are not valid: .*surprise"),
    ],
)
def test_a_head_that_does_not_fit_its_task_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_head(replace(random_head("classification", WIDTH, 0), **changed), WIDTH)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"weight": np.zeros((50, WIDTH), np.float32)},
            r"\(50, 16\) and \(50,\); accepted for task fill-mask are \(0, 16",
        ),
        (
            {"bias": np.zeros(9, np.float32)},
            r"\(0, 16\) and \(9,\); accepted for task fill-mask are \(0, 16\) and \(50,",
        ),
        (
            {"vocabulary": VocabularyHead.empty(FORM, 3)},
            r"the layers before a head's scores have the shapes .*\(3, 3\)",
        ),
        ({"settings": {}}, "the settings of task fill-mask are not valid: .*mask_id"),
    ],
)
def test_a_head_for_words_that_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    check_head(random_head("fill-mask", WIDTH, 0), WIDTH)
    with pytest.raises(InvalidArgument, match=message):
        check_head(replace(random_head("fill-mask", WIDTH, 0), **changed), WIDTH)


@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.parametrize("seed", range(4))
def test_heads_for_words_have_the_bases_weights_or_their_own(
    exported: Callable[..., Exported], engine: str, seed: int
) -> None:
    base = exported("roberta", engine)
    opened = open_pets_engine(engine, base.folder, threads=1, device="cpu")
    ids, lengths = np.array([[9, 4, 7, 4, 4, 4], [8, 5, 5, 0, 0, 0], [4, 6, 0, 0, 0, 0]]), np.array([6, 3, 2])
    rows = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    for name in ("fill-mask", "sparse-embedding"):
        terms = replace(
            random_terms("low_rank", base.layers, seed),
            head=random_head(name, base.layers.width, seed, words=VOCABULARY),
        )
        task = opened.add(terms)
        assert task.bytes < terms.bytes + 50_000  # the base's words are not counted
        outputs = opened.run([task] * 3, ids, lengths, all_tokens=True)
        found = computed(task.head, outputs, range(3), lengths, rows)
        truth = Truth(base.model, terms)
        for row, own in enumerate(rows):
            wanted = expected(truth, terms.head, own.tolist())
            np.testing.assert_allclose(found[row], wanted, atol=5 * TOLERANCE, rtol=1e-4)
        if name == "fill-mask":  # the fourth mask of the first row is beyond the head's limit
            assert (found.reshape(3, 3, -1) != 0).any(-1).tolist() == [[True] * 3, [False] * 3, [True, False, False]]


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_a_merged_copy_has_the_bases_words(exported: Callable[..., Exported], engine: str) -> None:
    base = exported("bert", engine)
    head = random_head("fill-mask", base.layers.width, 0, words=VOCABULARY)
    terms = replace(random_terms("low_rank", base.layers, 1), head=head)
    copy = open_pets_engine(engine, base.folder, threads=1, device="cpu", merged=terms)
    task = copy.add(unmerged(terms))
    ids = np.array([[9, 4, 7, 4]])
    found = computed(task.head, copy.run([task], ids, np.array([4]), all_tokens=True), [0], np.array([4]), [ids[0]])
    np.testing.assert_allclose(found[0], expected(Truth(base.model, terms), head, ids[0].tolist()), atol=5 * TOLERANCE)


def test_words_of_another_base_are_refused(exported: Callable[..., Exported]) -> None:
    base = exported("roberta", "torch")
    opened = open_pets_engine("torch", base.folder, threads=1, device="cpu")
    with pytest.raises(InvalidArgument, match="scores 50 words by the base's word embeddings, which are 60"):
        opened.add(TaskTerms(random_head("fill-mask", base.layers.width, 0)))


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="pooling: did you mean 'mean'"):
        check_head(random_head("embedding", WIDTH, 0, ("meen",)), WIDTH)


def test_an_engine_without_hidden_states_refuses_heads_that_read_them(
    exported: Callable[..., Exported], tmp_path: Any
) -> None:
    base = exported("bert", "torch")
    engine = open_pets_engine("torch", base.folder, threads=1, device="cpu")
    engine.description = engine.description.model_copy(update={"hidden": False})  # type: ignore[misc]
    for task in HEAD_TASKS:
        terms = TaskTerms(random_head(task, base.layers.width, 0))
        if task in POOLED:
            engine.remove(engine.add(terms))
        else:
            with pytest.raises(Unsupported, match="gives pooled vectors only"):
                engine.add(terms)


def test_rows_of_a_head_are_computed_together() -> None:
    head = Head(np.eye(3, dtype=np.float32), np.ones(3, np.float32), ("a", "b", "c"))
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    from tidal.pets.heads import HEADS

    found = HEADS["classification"].compute(head, HeadRows(vectors, np.asarray([1, 1])))
    np.testing.assert_array_equal(found, vectors + 1)
