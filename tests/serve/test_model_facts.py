"""What `tidal models list` reports about a repository without a server, and how load failures are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.serving import publish
from tidal.arlo.manifest import ArloManifest
from tidal.device import cpu
from tidal.engine_model.manifest import Runtime
from tidal.manifest import Source, TokenizerInfo, Verification
from tidal.profiles import LatencyProfile
from tidal.server.control import ModelState
from tidal.server.model_facts import model_facts
from tidal.server.reasons import sentence


def write_manifest(version_dir: Path, created: str) -> None:
    profile = LatencyProfile(
        lengths=(16, 32), batches=(1,), median_ms=((1.0,), (2.0,)), p95_ms=((1.0,), (2.0,)), threads=1
    )
    manifest = ArloManifest(
        kind="arlo",
        name="intents",
        created=created,
        spec="intents.yaml",
        fingerprint="f",
        source=Source(model="m", architecture="Bert", sha256="s"),
        tokenizer=TokenizerInfo(file="tokenizer/tokenizer.json", max_length=32, pad_token_id=0, type_ids=True),
        labels=("a", "b"),
        engine="openvino",
        precision="fp32",
        device=cpu(),
        libraries={},
        runtimes=(Runtime(max_length=32, file="engines/m.xml", dynamic=True, max_batch=1),),
        verification=Verification(samples=1, max_abs_error=0.0, tolerance=1e-3, argmax_agreement=1.0),
        profile=profile,
        files=(),
    )
    (version_dir / "manifest.json").write_text(manifest.model_dump_json())


def test_facts_of_a_published_version(tmp_path: Path) -> None:
    for version in (1, 2):
        write_manifest(publish(tmp_path / "models", "intents", version), created=f"2030-01-0{version}T00:00:00Z")
    (alone,) = model_facts(tmp_path / "models", None)
    assert (alone.published, alone.serves, alone.state) == ((1, 2), (), "no server")
    assert (alone.backend, alone.engine, alone.precision, alone.max_length) == ("python", "openvino", "fp32", 32)
    assert alone.built == "2030-01-02T00:00:00Z"
    (served,) = model_facts(tmp_path / "models", [ModelState("intents", 1, "READY", "")])
    assert (served.serves, served.state, served.built) == ((1,), "READY", "2030-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], "not loaded"),
        ([ModelState("m", 1, "UNAVAILABLE", "unloaded")], "not loaded"),
        ([ModelState("m", 1, "UNAVAILABLE", "Internal: boom")], "FAILED"),
        ([ModelState("m", 1, "UNLOADING", ""), ModelState("m", 2, "LOADING", "")], "LOADING"),
    ],
)
def test_state_of_a_model_that_does_not_serve(rows: list[ModelState], state: str, tmp_path: Path) -> None:
    publish(tmp_path / "models", "m")
    assert [fact.state for fact in model_facts(tmp_path / "models", rows)] == [state]


@pytest.mark.parametrize(
    ("reason", "reported"),
    [
        (
            "Internal: ValueError: boom\n\nAt:\n  /r/m/1/model.py(7): initialize\n  /x.py(1): y\n",
            "ValueError: boom at /r/m/1/model.py(7)",
        ),
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: no input;\n",
            "no input",
        ),
        ("Internal: InvalidArgument: no manifest: build it\n\nAt:\n  /r/m.py(7): f\n", "no manifest: build it"),
        ("", "Triton gives no reason"),
    ],
)
def test_a_reason_becomes_a_sentence(reason: str, reported: str) -> None:
    assert sentence(reason) == reported
