"""How the workers of a model and its libraries enter its fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidal.device import Device
from tidal_builders.arlo.plan import arlo_ingredients
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.workers import Workers, one_per_thread
from tidal_builders.fingerprint import changes


def spec(**fields: object) -> ArloSpec:
    return ArloSpec.model_validate({"kind": "arlo", "name": "m", "model": "m", **fields})


def test_the_alternative_has_one_engine_per_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    assert one_per_thread(spec()) == Workers(8, 1)


@pytest.mark.parametrize("fields", [{"engine": "torch"}, {"threads": 2}, {"contexts": 2}])
def test_settings_without_an_alternative(monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    assert one_per_thread(spec(**fields)) is None


@pytest.mark.parametrize(
    ("engine", "own"), [("openvino", {"openvino", "nncf"}), ("torch", set()), ("tensorrt", {"tensorrt", "onnxscript"})]
)
def test_only_libraries_of_the_engine_are_ingredients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, own: set[str]
) -> None:
    for module in ("plan", "workers"):
        monkeypatch.setattr(f"tidal_builders.arlo.{module}.choose_device", lambda kind, wanted: "gpu")
    monkeypatch.setattr("tidal.device.here", lambda kind: Device(kind="gpu", name="Some GPU", features=()))
    found = arlo_ingredients(spec(engine=engine), tmp_path, "classification", None, None)
    names = {name.removeprefix("library ") for name in found if name.startswith("library ")}
    assert names == {"torch", "transformers", "tokenizers", "numpy", *own}


def test_changes_are_changed_new_and_former_ingredients() -> None:
    built = {"code": "a" * 64, "device": "x", "former": "1", "same": "s"}
    now = {"code": "b" * 64, "device": "y", "new": "2", "same": "s"}
    assert changes(built, now) == [
        "code changed",
        "device changed from x to y",
        "former changed from 1 to none",
        "new changed from none to 2",
    ]
    assert changes(now, now) == []
