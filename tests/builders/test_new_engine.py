"""The registry of engines: a new engine is one entry, and specs, builds, manifests and `tidal doctor` know it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tabi.builders.command import tidal_build
from tidal import device
from tidal.arlo.manifest import load_arlo_manifest
from tidal.engines import available_kinds, choose_device, engine_file, engine_version
from tidal.engines.entries import ENGINES, EngineEntry
from tidal.errors import InvalidArgument
from tidal.server.diagnosis import diagnose
from tidal_builders.specs import parse_spec, spec_schema

WriteSpec = Callable[..., Path]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EngineEntry(
        module="tests.builders.toy_engine",
        library="openvino",
        distribution="openvino",
        extra="build",
        devices=("cpu",),
        threads_per_process=True,
    )
    monkeypatch.setitem(ENGINES, "toy", entry)


def test_a_new_engine_is_one_entry(toy: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    done = tidal_build(write_spec(engine="toy", threads=1, contexts=1), "--repository", tmp_path / "r", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["models"][0]["engine"] == "toy"
    version = tmp_path / "r/tiny/1"
    manifest = load_arlo_manifest(version)
    manifest.check(version, device.cpu())
    assert (manifest.engine, manifest.runtimes[0].file) == ("toy", f"engines/{engine_file('toy')}")


@pytest.mark.slow
def test_a_new_engine_is_known_everywhere(toy: None) -> None:
    assert "toy" in available_kinds()
    assert engine_version("toy") == engine_version("openvino")
    assert any(check.name == "engine toy" for check in diagnose())
    engines = spec_schema()["$defs"]["ArloSpec"]["properties"]["engine"]["enum"]
    assert engines == ["openvino", "torch", "tensorrt", "toy"]
    with pytest.raises(InvalidArgument, match="engine toy runs on cpu, not on gpu"):
        choose_device("toy", "gpu")


@pytest.mark.parametrize("kind", ["arlo", "otas"])
def test_an_unknown_engine_is_refused(kind: str) -> None:
    content = {"kind": kind, "name": "m", "model": "org/model", "engine": "toy"}
    with pytest.raises(InvalidArgument, match=r"field 'engine'.*'openvino', 'torch' or 'tensorrt', got 'toy'"):
        parse_spec(content, "x.yaml")
