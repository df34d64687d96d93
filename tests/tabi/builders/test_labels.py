"""Matching the classes of levels by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidal.errors import InvalidArgument
from tidal_builders.tabi.labels import LevelClasses, agree_labels, read_classes


def config(folder: Path, **fields: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_classes_of_a_source_model(tmp_path: Path) -> None:
    names = {"10": "k", "0": "a", "2": "c"}
    assert read_classes("small", config(tmp_path, id2label=names), None).names == ("a", "c", "k")
    assert read_classes("small", config(tmp_path), None).names == ("LABEL_0", "LABEL_1")
    assert read_classes("small", config(tmp_path, id2label={"0": "x", "1": "y"}), ("no", "yes")).names == ("no", "yes")


def test_models_that_a_cascade_cannot_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"level 'small': .*config.json cannot be read"):
        read_classes("small", tmp_path, None)
    with pytest.raises(InvalidArgument, match="level 'small': field 'labels' has 3 names, but the model has 2 classes"):
        read_classes("small", config(tmp_path), ("a", "b", "c"))
    with pytest.raises(
        InvalidArgument, match=r"level 'small': .*kind 'tabi' cannot serve .*: it is a multi-label classifier"
    ):
        read_classes("small", config(tmp_path, problem_type="multi_label_classification"), None)


def test_classes_are_matched_by_their_names() -> None:
    levels = [
        LevelClasses("small", ("b", "a", "c")),
        LevelClasses("large", ("A", "B", "C")),
        LevelClasses("third", ("b", "a", "c")),
    ]
    found = agree_labels(levels, None)
    assert (found.task, found.labels, found.orders) == ("classification", ("b", "a", "c"), (None, (1, 0, 2), None))
    assert found.names_of(1) == ("a", "b", "c")
    given = agree_labels(levels, ("c", "b", "a"))
    assert (given.labels, given.orders[0]) == (("c", "b", "a"), (2, 0, 1))
    assert given.names_of(0) == ("b", "a", "c")


def test_models_with_numbered_labels_take_the_given_names_in_order() -> None:
    numbered = LevelClasses("small", ("LABEL_0", "LABEL_1"))
    assert agree_labels([numbered, numbered], None).labels == ("LABEL_0", "LABEL_1")
    found = agree_labels([numbered, LevelClasses("large", ("yes", "no"))], ("no", "yes"))
    assert found.orders == (None, (1, 0))
    assert found.names_of(0) == ("no", "yes")


def test_regressions_have_no_labels() -> None:
    one = LevelClasses("small", ("LABEL_0",))
    found = agree_labels([one, one], None)
    assert (found.task, found.labels, found.orders, found.names_of(0)) == ("regression", (), (None, None), None)
    with pytest.raises(InvalidArgument, match="field 'labels': the levels are regressions"):
        agree_labels([one, one], ("a", "b"))


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        ((("a", "b"), ("a", "b", "c")), None, "must have the same classes, got numbers of classes l0 2, l1 3"),
        ((("a", "b"), ("a", "c")), None, "level 'l1': its labels differ from those of the cascade: 'c' instead of 'b'"),
        ((("a", "b"), ("LABEL_0", "LABEL_1")), None, "level 'l1': the model only numbers its labels"),
        ((("LABEL_0", "LABEL_1"), ("a", "b")), None, "level 'l0': the model only numbers its labels"),
        ((("a", "b"), ("b", "a")), ("x", "y"), "level 'l0': its labels differ from those of the cascade"),
        ((("a", "b"), ("b", "a")), ("x", "y", "z"), "the levels have 2 classes, got 3 names"),
        ((("a", "a"), ("a", "a")), None, "level 'l0': its labels must differ"),
    ],
)
def test_levels_of_different_classes_are_refused(
    names: tuple[tuple[str, ...], ...], labels: tuple[str, ...] | None, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        agree_labels([LevelClasses(f"l{place}", each) for place, each in enumerate(names)], labels)
