"""Labels as numbers, and the parts of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidal.errors import InvalidArgument
from tidal_builders.rows import Rows, label_numbers
from tidal_builders.tabi.data import labelled_data, regression_values, split
from tidal_builders.tabi.spec import Parts


def rows(labels: list[str], texts: list[str] | None = None) -> Rows:
    wanted = texts or [f"text {number}" for number in range(len(labels))]
    return Rows(Path("d.tsv"), tuple(range(2, len(labels) + 2)), tuple((text,) for text in wanted), tuple(labels))


def test_labels_by_name_and_by_number() -> None:
    assert label_numbers(rows(["good", "bad", "good"]), ("bad", "good")).tolist() == [1, 0, 1]
    assert label_numbers(rows(["1", "0"]), ("bad", "good")).tolist() == [1, 0]
    # Names that are numbers are names.
    assert label_numbers(rows(["1", "5"]), ("5", "4", "3", "2", "1")).tolist() == [4, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["good", "god"], r"line 3: unknown label 'god', accepted are label names \(bad, good\)"),
        (["good", "0"], r"line 3: unknown label '0', accepted are label names"),
        (["0", "2"], r"line 3: unknown label '2', accepted are numbers 0 to 1, or label names \(bad, good\)"),
        (["0", "1.0"], "line 3: unknown label '1.0'"),
    ],
)
def test_the_error_of_an_unknown_label_names_its_line(labels: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        label_numbers(rows(labels), ("bad", "good"))


def test_values_of_a_regression() -> None:
    assert regression_values(rows(["1", "-2.5", "1e-1"])).tolist() == [1.0, -2.5, 0.1]
    with pytest.raises(
        InvalidArgument,
        match=r"line 3: .* must be a finite number, got 'nan'; line 4: .* got 'much'",
    ):
        regression_values(rows(["1", "nan", "much"]))
    with pytest.raises(InvalidArgument, match="are 3; a regression needs different values"):
        regression_values(rows(["3", "3.0"]))


def test_the_rows_of_each_label_are_split_by_the_shares() -> None:
    labels = np.repeat(np.arange(5), [400, 200, 100, 40, 8])
    texts = [(f"text {number}",) for number in range(len(labels))]
    part = split(texts, labels, Parts(calibration=0.2, selection=0.3, report=0.5))
    for label, count in enumerate((400, 200, 100, 40, 8)):
        shares = np.bincount(part[labels == label], minlength=3) / count
        assert np.abs(shares - (0.2, 0.3, 0.5)).max() <= 1.5 / count, label


def test_equal_texts_are_in_one_part_whatever_their_labels() -> None:
    texts = [(f"text {number % 60}",) if number % 2 else (f" text {number % 60} ",) for number in range(300)]
    part = split(texts, np.arange(300) % 3, Parts())
    parts_of: dict[str, set[int]] = {}
    for (text,), number in zip(texts, part.tolist(), strict=True):
        parts_of.setdefault(text.strip(), set()).add(number)
    assert {len(parts) for parts in parts_of.values()} == {1}
    assert {number for parts in parts_of.values() for number in parts} == {0, 1, 2}


def test_the_split_does_not_depend_on_the_order_of_the_rows() -> None:
    texts = [(f"text {number}",) for number in range(90)]
    labels = np.arange(90) % 3
    order = np.random.default_rng(0).permutation(90)
    part = split(texts, labels, Parts())
    assert (split([texts[row] for row in order], labels[order], Parts()) == part[order]).all()


def test_a_regression_is_split_over_its_range() -> None:
    values = np.random.default_rng(0).normal(size=400)
    data = labelled_data(rows([str(value) for value in values]), None, Parts())
    assert data.truth.tolist() == values.tolist()
    means = [float(data.truth[data.part == part].mean()) for part in range(3)]
    assert np.ptp(means) < 0.1


def test_a_part_of_too_few_rows_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match=r"gives the (calibration|selection) part \d of its 30 rows, at least 10"):
        labelled_data(rows(["0", "1"] * 15), ("bad", "good"), Parts())
