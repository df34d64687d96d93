"""The compiled core against plain Python, and what happens without it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.boundary.tensors import FakeTensor
from tidal import answers
from tidal.answers import build, library
from tidal.errors import NotFound
from tidal.requests import Array
from tidal.server.diagnosis import core_check
from tidal.serving.classes import ClassScores, label_array

LABELS = ("no", "yes", "vielleicht später")
TYPES = {
    "label": np.dtype(object),
    "scores": np.dtype(np.float32),
    "count": np.dtype(np.int32),
    "ids": np.dtype(np.int64),
}
# All finite logits of float32, and -inf, which masks a class.
LOGITS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(-math.inf)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    assert library.library() is not None, f"run {library.BUILD_COMMAND}"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled core."""
    library.library.cache_clear()
    monkeypatch.setattr(library, "library_path", lambda: Path("/missing/tidal_answers.so"))
    yield
    library.library.cache_clear()


def plain_softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


@given(st.lists(st.tuples(LOGITS, LOGITS, LOGITS), min_size=1, max_size=9))
def test_scores_are_those_of_plain_python(rows: list[tuple[float, float, float]]) -> None:
    logits = np.array(rows, np.float32)
    found = answers.class_scores(logits, label_array(LABELS))
    if any(max(row) == -math.inf for row in logits.tolist()):
        assert found is None
        return
    assert found is not None
    probabilities, label = found
    assert (probabilities.dtype, label.shape) == (np.float32, (len(rows), 1))
    for row, scores, best in zip(logits.tolist(), probabilities.tolist(), label[:, 0].tolist(), strict=True):
        assert scores == pytest.approx(plain_softmax(row), rel=1e-5, abs=1e-7)
        assert best == LABELS[row.index(max(row))].encode()


@pytest.mark.parametrize(
    "logits",
    [
        np.array([[1, math.nan, 0]], np.float32),
        np.array([[1, math.inf, 0]], np.float32),
        np.array([[1, 2, 3]], np.float64),
        np.array([[1, 2, 3, 4]], np.float32),
        np.array([1, 2, 3], np.float32),
        np.zeros((3, 6), np.float32)[:, ::2],
        np.zeros((2, 0), np.float32),
    ],
    ids=["nan", "inf", "float64", "more classes than labels", "one axis", "strided", "no classes"],
)
def test_other_logits_are_left_to_numpy(logits: Array) -> None:
    assert answers.class_scores(logits, label_array(LABELS)) is None


def test_nan_has_the_label_of_numpy() -> None:
    scores = ClassScores(np.array([[1, 2, 0], [0, math.nan, 5]], np.float32), label_array(LABELS))
    assert scores["label"][:, 0].tolist() == [b"yes", b"yes"]
    assert np.isnan(scores["probabilities"][1]).all()


def test_labels_are_released_with_their_array() -> None:
    label = b"a label that nobody else refers to"
    labels = np.array([label, b"other"], object)
    before = sys.getrefcount(label)
    found = answers.class_scores(np.array([[2, 1]] * 5, np.float32), labels)
    assert sys.getrefcount(label) == before + 5
    del found
    assert sys.getrefcount(label) == before


def values(name: str, rows: int, number: int) -> Array:
    if name == "label":
        return np.array([[b"label %d" % (number + row)] for row in range(rows)], object)
    if name == "scores":
        return np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) + number
    return np.arange(number, number + rows, dtype=TYPES[name])[:, None]


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from(sorted(TYPES)), min_size=1), st.integers(1, 3), st.integers(0, 3)),
        max_size=30,
    ),
    st.booleans(),
)
def test_tensors_have_the_values_of_the_wanted_outputs(each: list[tuple[set[str], int, int]], sharing: bool) -> None:
    shared: dict[Any, Any] | None = {} if sharing else None
    made: list[FakeTensor] = []
    for wanted, rows, number in each:
        outputs = {name: values(name, rows, number) for name in TYPES}
        found = answers.tensors(outputs, wanted, TYPES, rows, FakeTensor, shared)
        assert found is not None
        assert sorted(tensor.name for tensor in found) == sorted(wanted)
        for tensor in found:
            array = outputs[tensor.name]
            assert tensor.array.tolist() == array.tolist()
            assert tensor.array.dtype == array.dtype
            if sharing and rows == 1 and tensor.name != "scores":
                assert tensor.array is not array  # the next batch may overwrite it
        made += found
    if sharing:
        singles = {(t.name, t.array.item()) for t in made if t.array.size == 1}
        assert len({id(t) for t in made if t.array.size == 1}) == len(singles)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((1, 3), np.float64),
        np.float32(0),
        np.zeros((1, 6), np.float32)[:, ::2],
        [[1.0]],
    ],
    ids=["two rows", "float64", "no axis", "strided", "list"],
)
def test_an_output_that_has_to_be_checked_is_left_to_python(array: Any) -> None:
    outputs = {"scores": array, "count": np.zeros((1, 1), np.int32)}
    assert answers.tensors(outputs, ["count", "scores"], TYPES, 1, FakeTensor, {}) is None


@pytest.mark.parametrize("wanted", ["absent", "undeclared"])
def test_a_missing_or_undeclared_output_is_left_to_python(wanted: str) -> None:
    outputs = {"undeclared": np.zeros((1, 1), np.int32)}
    assert answers.tensors(outputs, [wanted], TYPES, 1, FakeTensor, {}) is None


def test_an_answer_without_a_batch_axis_may_have_any_rows() -> None:
    found = answers.tensors({"scores": np.zeros((2, 3), np.float32)}, ["scores"], TYPES, None, FakeTensor, {})
    assert found is not None


def test_an_error_of_triton_is_raised() -> None:
    def create(name: str, array: Array) -> object:
        raise MemoryError("shared memory is full")

    with pytest.raises(MemoryError, match="shared memory is full"):
        answers.tensors({"count": np.zeros((1, 1), np.int32)}, ["count"], TYPES, 1, create, {})


def test_shared_tensors_are_bounded_in_number_and_size() -> None:
    shared: dict[Any, Any] = {}
    for number in range(1000):
        answers.tensors({"count": np.array([[number]], np.int32)}, ["count"], TYPES, 1, FakeTensor, shared)
        assert len(shared) <= 256
    before = len(shared)
    for _ in range(2):
        answers.tensors({"label": np.array([[b"x" * 257]], object)}, ["label"], TYPES, 1, FakeTensor, shared)
    assert len(shared) == before


@pytest.mark.usefixtures("absent")
def test_without_the_core_numpy_computes_the_scores() -> None:
    logits = np.array([[1, 3, 2]], np.float32)
    assert answers.class_scores(logits, label_array(LABELS)) is None
    assert answers.tensors({}, [], {}, 1, FakeTensor, None) is None
    scores = ClassScores(logits, label_array(LABELS))
    assert scores["label"].tolist() == [[b"yes"]]
    assert scores["probabilities"][0].tolist() == pytest.approx(plain_softmax([1, 3, 2]))
    check = core_check()
    assert (check.verdict, library.BUILD_COMMAND in check.advice) == ("note", True)


def test_the_core_is_reported_by_the_doctor() -> None:
    assert (core_check().verdict, core_check().found) == ("ok", str(library.library_path()))


def test_the_build_reports_missing_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(NotFound, match=r"lacks Python\.h.*install the headers of this Python"):
        build.build(force=True)


WORDS = st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=3)


def plain_text(value: bytes) -> str | None:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.strip() else None


@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), max_size=4), st.integers(0, 60))
def test_texts_are_those_of_plain_python(columns: list[list[bytes]], limit: int) -> None:
    rows = [value for column in columns for value in column]
    expected = [plain_text(value) for value in rows]
    found = answers.texts([np.array(column, object)[:, None] for column in columns], limit)
    if None in expected or sum(map(len, rows)) > limit:
        assert found is None
    else:
        assert found == expected


@pytest.mark.parametrize(
    "column",
    [np.array([b"a"], object), np.array([[b"a", b"b"]], object), np.array([["a"]], object), np.array([[b"a"]]), None],
    ids=["one axis", "two columns", "str", "fixed length", "no array"],
)
def test_other_columns_are_left_to_python(column: Any) -> None:
    assert answers.texts([np.array([[b"fine"]], object), column], 100) is None
