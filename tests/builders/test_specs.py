from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tidal.errors import InvalidArgument, Unsupported
from tidal_builders.arlo.plan import plan_arlo
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.specs import load_spec, parse_spec, spec_schema

GOOD = {"kind": "arlo", "name": "m", "model": "org/model"}


def test_defaults() -> None:
    spec = parse_spec(GOOD, "x.yaml")
    assert (spec.engine, spec.precision, spec.form, spec.lengths) == ("openvino", "fp32", "auto", "auto")
    assert spec.outputs == ("logits",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "arlow"}, "unknown kind 'arlow': did you mean 'arlo'"),
        ({"kind": None}, "has no field 'kind'; accepted: arlo"),
        ({"precission": "fp32"}, "unknown field 'precission': did you mean 'precision'"),
        ({"precision": "fp8"}, "field 'precision'.*'fp32', 'fp16', 'bf16', 'int8' or 'auto'"),
        ({"engine": "onnx"}, "field 'engine'.*'openvino', 'torch' or 'tensorrt'"),
        ({"device": "cuda"}, "field 'device'.*'auto', 'cpu' or 'gpu'"),
        ({"tensorrt": {}}, "fields 'engine' and 'tensorrt': plan options require engine tensorrt, got openvino"),
        (
            {"engine": "tensorrt", "tensorrt": {"workspce_mb": 1}},
            "field 'tensorrt': unknown field 'workspce_mb': did you mean 'workspace_mb'",
        ),
        ({"engine": "tensorrt", "tensorrt": {"workspace_mb": 0}}, "field 'tensorrt': field 'workspace_mb'.*than or eq"),
        (
            {"engine": "tensorrt", "tensorrt": {"hardware_compatibility": "volta"}},
            "field 'tensorrt': field 'hardware_compatibility'.*'ampere_plus'",
        ),
        (
            {"engine": "tensorrt", "tensorrt": {"native": True}},
            "fields 'placement' and 'tensorrt': native requires placement partitioned, got auto",
        ),
        ({"name": "../m"}, "field 'name'"),
        ({"model": ""}, "field 'model'"),
        ({"tolerance": 0}, "field 'tolerance'.*greater than 0"),
        ({"tolerance": float("nan")}, "field 'tolerance'"),
        ({"lengths": [64, 32]}, r"positive, ascending lengths or 'auto', got \[64, 32\]"),
        ({"lengths": []}, "positive, ascending"),
        ({"lengths": [0, 8]}, "positive, ascending"),
        ({"lengths": "all"}, "field 'lengths'"),
        ({"max_batch": 65}, "field 'max_batch'.*less than or equal to 64"),
        ({"outputs": ["attention_received"]}, "expected logits"),
        ({"outputs": ["logits", "logits"]}, "once each"),
        ({"threads": 0}, "field 'threads'"),
        ({"labels": []}, "field 'labels'"),
        ({"placement": "split"}, "field 'placement'.*'auto', 'polymorphic' or 'partitioned'"),
        ({"placement": "partitioned", "form": "dynamic"}, "fields 'placement' and 'form': partitioned requires static"),
        ({"placement": "polymorphic", "slo_ms": 5}, "fields 'placement' and 'slo_ms': polymorphic has no SLO"),
        ({"slo_ms": 0}, "field 'slo_ms'.*greater than 0"),
        ({"slo_ms": float("inf")}, "field 'slo_ms'"),
    ],
)
def test_errors_name_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"spec x.yaml.*{message}"):
        parse_spec({**GOOD, **change}, "x.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n", "must be a mapping of fields, got list"), ("a: [", "not valid YAML"), ("", "got NoneType")],
)
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=message):
        load_spec(path)


def test_the_error_of_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nothing.yaml cannot be read: No such file"):
        load_spec(tmp_path / "nothing.yaml")


def test_the_schema_describes_every_field() -> None:
    schema = spec_schema()
    assert schema["discriminator"] == {"propertyName": "kind"}
    assert len(schema["oneOf"]) == 5
    for title, definition in schema["$defs"].items():
        for name, field in definition["properties"].items():
            assert name == "kind" or field.get("description"), f"{title}.{name}"


def test_an_engine_that_this_machine_lacks_is_refused_before_the_build(tmp_path: Path, tiny: Path) -> None:
    if find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed here")
    spec = parse_spec({**GOOD, "model": str(tiny), "engine": "tensorrt", "precision": "fp16"}, "x.yaml")
    with pytest.raises(Unsupported, match=r"'tensorrt' is not available here: pip install .*\[tensorrt\]'"):
        plan_arlo(spec, tmp_path, tmp_path)
    with pytest.raises(InvalidArgument, match="field 'device': engine openvino runs on cpu, not on gpu"):
        plan_arlo(spec.model_copy(update={"engine": "openvino", "device": "gpu"}), tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "plans"),
    [
        ({}, "shared"),
        ({"placement": "partitioned"}, "separate"),
        ({"placement": "partitioned", "tensorrt": {"workspace_mb": 64}}, "separate"),
        ({"placement": "partitioned", "tensorrt": {"plans": "shared"}}, "shared"),
    ],
)
def test_runtimes_in_processes_of_their_own_have_plans_of_their_own(fields: dict[str, Any], plans: str) -> None:
    spec = parse_spec({"kind": "arlo", "name": "m", "model": "m", "engine": "tensorrt", **fields}, "s.yaml")
    assert isinstance(spec, ArloSpec)
    assert spec.plan_options.plans == plans
