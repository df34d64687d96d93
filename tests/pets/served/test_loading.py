"""Loading a base: parameters, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from testing.pets import Base
from testing.requests import make_context
from tests.pets.served.serving import OUTPUTS
from tidal.errors import InvalidArgument, Unsupported
from tidal.metrics import Metrics
from tidal.pets.loading import load
from tidal.pets.parameters import PetsParameters
from tidal.triton.parameters import parse_parameters


def start(model: Path, outputs: frozenset[str] = OUTPUTS, **parameters: Any) -> None:
    """Load a model and end its service."""
    context = make_context(model, Metrics("pets"), model="b", outputs=outputs, failures=[])
    load(context, PetsParameters(**parameters))(context).close(5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"batching": "fixed"}, "batching fixed without fixed_size"),
        ({"fixed_size": 8}, "batching joint and fixed_size, which is only accepted with batching fixed"),
        ({"spread_tokens": 4}, "batching joint and spread_tokens, which is only accepted with batching by_spread"),
        ({"batch_memory_mb": 1e-6}, "bytes of memory permit no batch"),
    ],
)
def test_conflicting_parameters_are_refused(base: Base, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        start(base.repository / "base", **parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        *({"batching": name} for name in ("joint", "soonest", "coordinated", "alpha_only", "beta_only", "by_spread")),
        {"batching": "by_spread", "spread_tokens": 4},
        {"batching": "fixed", "fixed_size": 4, "max_batch": 2, "batch_memory_mb": 1.0},
    ],
)
def test_every_batching_policy_loads(base: Base, parameters: dict[str, Any]) -> None:
    start(base.repository / "base", **parameters)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"task_memory": "5"}, "unknown parameter 'task_memory' in config.pbtxt: did you mean 'task_memory_mb'"),
        ({"batching": "best"}, "parameter 'batching' in config.pbtxt is 'best'"),
        ({"max_batch": "0"}, "parameter 'max_batch' in config.pbtxt is '0'"),
    ],
)
def test_unknown_parameters_and_values_are_refused(raw: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_parameters({name: {"string_value": value} for name, value in raw.items()}, PetsParameters)


def test_a_base_runs_at_the_published_precision(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.copy(tmp_path, "base")
    file = tmp_path / "base/1/manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "precision": "bf16"}))
    asked = []

    def note(*_: Any, precision: str, **__: Any) -> None:
        asked.append(precision)
        raise Unsupported("seen")

    monkeypatch.setattr("tidal.pets.loading.open_pets_engine", note)
    with pytest.raises(Unsupported, match="seen"):
        start(tmp_path / "base")
    assert asked == ["bf16"]


def test_tensorrt_accepts_no_merged_copies(base: Base, tmp_path: Path) -> None:
    base.copy(tmp_path, "base")
    file = tmp_path / "base/1/manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "engine": "tensorrt"}))
    with pytest.raises(
        InvalidArgument, match="has merged_copies, which are only accepted with engine openvino or torch"
    ):
        start(tmp_path / "base", merged_copies=1)


def test_an_unknown_output_is_refused(base: Base) -> None:
    with pytest.raises(InvalidArgument, match="declares the output 'pooled'"):
        start(base.repository / "base", OUTPUTS | {"pooled"})


def test_a_damaged_version_names_the_rebuild_command(base: Base, tmp_path: Path) -> None:
    base.copy(tmp_path, "base")
    layers = tmp_path / "base/1/base.safetensors"
    layers.write_bytes(layers.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidArgument, match=r"differs from what was published; rebuild with `tidal build .*--force"):
        start(tmp_path / "base")


def test_a_version_for_another_device_is_refused(base: Base, tmp_path: Path) -> None:
    base.copy(tmp_path, "base")
    file = tmp_path / "base/1/manifest.json"
    content = json.loads(file.read_text())
    content["device"]["name"] = "Another CPU"
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match="was built for Another CPU"):
        start(tmp_path / "base")


def test_the_profile_must_cover_the_longest_input(base: Base) -> None:
    from tidal.pets.manifest import PetsManifest, load_pets_manifest

    manifest = load_pets_manifest(base.repository / "base/1")
    with pytest.raises(ValidationError, match="the profile ends at length 64, not at 65"):
        PetsManifest.model_validate({**manifest.model_dump(), "max_length": 65})
