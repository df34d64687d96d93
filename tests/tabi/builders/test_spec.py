from __future__ import annotations

from typing import Any

import pytest

from tidal.errors import InvalidArgument
from tidal.tabi.manifest import Target
from tidal_builders.specs import parse_spec
from tidal_builders.tabi.spec import TabiSpec

GOOD: dict[str, Any] = {
    "kind": "tabi",
    "name": "reviews",
    "levels": [{"name": "small", "model": "org/small"}, {"name": "large", "model": "org/large"}],
    "data": "labelled.tsv",
    "target": {"accuracy": 0.9},
}


def spec(**change: Any) -> TabiSpec:
    parsed = parse_spec({**GOOD, **change}, "x.yaml")
    assert isinstance(parsed, TabiSpec)
    return parsed


def levels(**second: Any) -> list[dict[str, Any]]:
    return [GOOD["levels"][0], {**GOOD["levels"][1], **second}]


def test_defaults() -> None:
    parsed = spec()
    assert parsed.parts.shares == (0.25, 0.25, 0.5)
    assert parsed.columns.label == "label"
    assert parsed.models == ("reviews", "reviews_small", "reviews_large")


def test_a_target_may_be_relative_to_the_large_level() -> None:
    assert spec(target={"accuracy_loss": 0.005}).target.accuracy_loss == 0.005


def test_a_level_that_is_a_task_is_not_a_model_of_the_cascade() -> None:
    parsed = spec(levels=[{"name": "small", "model": "base", "task": "mood"}, GOOD["levels"][1]])
    assert parsed.models == ("reviews", "reviews_large")
    assert parsed.model_of(parsed.levels[0]) == "base"


def test_options_of_a_level_override_those_of_all_levels() -> None:
    parsed = spec(
        runtimes={"lengths": [16, 64], "precision": "bf16"}, levels=levels(runtimes={"precision": "fp32", "threads": 1})
    )
    small, large = (parsed.runtimes_of(level) for level in parsed.levels)
    assert (small.lengths, small.precision, small.threads) == ((16, 64), "bf16", None)
    assert (large.lengths, large.precision, large.threads) == ((16, 64), "fp32", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levles": []}, "unknown field 'levles': did you mean 'levels'"),
        ({"levels": []}, "field 'levels'.*at least 2 items"),
        ({"levels": GOOD["levels"][:1]}, "field 'levels'.*at least 2 items"),
        ({"levels": levels(modle="m")}, "field 'levels' entry 2: unknown field 'modle': did you mean 'model'"),
        ({"levels": levels(name="a b")}, "field 'levels' entry 2: field 'name'"),
        (
            {"levels": levels(model="./base", task="mood")},
            "field 'levels' entry 2: fields 'task' and 'model': expected the name of a pets model, got './base'",
        ),
        (
            {"levels": levels(model="base", task="mood", runtimes={"threads": 1})},
            "field 'levels' entry 2: fields 'task' and 'runtimes': got both; a task runs as its pets model does",
        ),
        (
            {"levels": levels(model="base", task="mood", revision="main")},
            "field 'levels' entry 2: fields 'task' and 'revision'",
        ),
        (
            {"levels": levels(model="base", task="-x")},
            "field 'levels' entry 2: field 'task': '-x' is not a valid task name",
        ),
        ({"levels": levels(model="base", task="")}, "field 'levels' entry 2: field 'task'"),
        ({"levels": levels(name="small")}, "field 'levels': names must differ, got small, small"),
        (
            {"levels": levels(runtimes={"precision": "fp8"})},
            "field 'levels' entry 2: field 'runtimes': field 'precision'.*'bf16'",
        ),
        (
            {"levels": levels(runtimes={"form": "dynamic"}), "runtimes": {"placement": "partitioned"}},
            "field 'runtimes' of level 'large', with that of all levels: .*partitioned requires static runtimes",
        ),
        ({"runtimes": {"lengths": [64, 32]}}, r"field 'runtimes': field 'lengths': expected positive, ascending"),
        ({"target": {}}, "field 'target': expected one of accuracy, accuracy_loss, latency_ms and .*, got none"),
        (
            {"target": {"accuracy": 0.9, "accuracy_loss": 0.1}},
            "field 'target': expected one of.*got accuracy, accuracy_loss",
        ),
        ({"target": {"accuracy_loss": -0.005}}, "field 'target': field 'accuracy_loss'.*greater than or equal to 0"),
        ({"target": {"accuracy_loss": 1}}, "field 'target': field 'accuracy_loss'.*less than 1"),
        ({"target": {"accuracy_loss": "half"}}, "field 'target': field 'accuracy_loss'"),
        ({"latencies": "guessed"}, "field 'latencies'.*'served' or 'engines'"),
        ({"target": {"accuracy": 0.9, "latency_ms": 5}}, "field 'target': expected one of.*got accuracy, latency_ms"),
        ({"target": {"acuracy": 0.9}}, "field 'target': unknown field 'acuracy': did you mean 'accuracy'"),
        ({"target": {"escalation_rate": 2}}, "field 'target': field 'escalation_rate'.*less than or equal to 1"),
        ({"parts": {"calibration": 0.5}}, "field 'parts': expected shares that sum to 1, got a sum of 1.25"),
        ({"metric": "f1"}, "field 'metric'.*'spearman'"),
        ({"labels": ["a"]}, "field 'labels'.*at least 2 items"),
        ({"labels": ["a", "a"]}, "field 'labels': names must differ"),
        ({"tolerance": 0}, "field 'tolerance'.*greater than 0"),
        ({"columns": {"txt": "a"}}, "field 'columns': unknown field 'txt': did you mean 'text'"),
    ],
)
def test_errors_name_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"spec x.yaml.*{message}"):
        spec(**change)


def test_one_point_is_lost_at_most_by_default() -> None:
    content = {name: value for name, value in GOOD.items() if name != "target"}
    made = parse_spec(content, "x.yaml")
    assert isinstance(made, TabiSpec)
    assert made.target == Target(accuracy_loss=0.01)


@pytest.mark.parametrize("field", ["name", "levels", "data"])
def test_errors_name_a_missing_field(field: str) -> None:
    content = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(InvalidArgument, match=f"field '{field}': field required"):
        parse_spec(content, "x.yaml")
