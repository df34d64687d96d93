"""Builds of further architectures: published only if their generations are those of the unmodified model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
import yaml

from testing.decoders import MIXTURES, POSITIONS, VOCABULARY, write_decoder
from tests.flover.generating import Generation, generate_together, generated_by_transformers
from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.manifest import load_flover_manifest
from tidal.flover.opening import open_runner
from tidal_builders.flover.build import build_flover
from tidal_builders.flover.report import FloverReport
from tidal_builders.specs import load_spec

pytestmark = pytest.mark.slow

_TRAINED = 64
_LONGROPE = {
    "original_max_position_embeddings": _TRAINED,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0, 1.1, 1.3, 1.2],
        "long_factor": [1.0, 1.5, 3.0, 2.5],
    },
}  # fmt: skip


def build(folder: Path, source: Path, **fields: Any) -> FloverReport:
    content = {"kind": "flover", "name": "writer", "model": str(source), "max_concurrency": 2, "threads": 1}
    path = folder / "writer.yaml"
    path.write_text(yaml.safe_dump(content | {"profile_seconds": 0.01} | fields))
    spec: Any = load_spec(path)
    return build_flover(spec, folder / "r", spec_file=path, force=False)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", *MIXTURES])
def test_a_published_version_generates_as_transformers(family: str, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", family)
    assert build(tmp_path, source).outcome == "published"
    version = tmp_path / "r/writer/1"
    manifest = load_flover_manifest(version)
    assert (manifest.verification.match_rate, manifest.max_length) == (1.0, POSITIONS)
    sequences = [Generation(np.arange(length) * 7 % VOCABULARY, 20, 0) for length in (5, 60)]
    generate_together(open_runner(manifest, version), sequences, np.random.default_rng(0))
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    for each in sequences:
        assert each.tokens == generated_by_transformers(model, each.prompt, 20)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", *MIXTURES])
def test_precisions_are_compared(family: str, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", family)
    assert build(tmp_path, source, precision="auto").outcome == "published"
    trials = {trial.precision: trial for trial in load_flover_manifest(tmp_path / "r/writer/1").trials}
    assert set(trials) == {"fp32", "bf16", "int8"}
    # Rounding changes the experts of some tokens, whose scores are almost equal, and so their logits.
    largest = 10 if family in MIXTURES else 0.5
    assert all(trial.max_error < largest and trial.match_rate > 0.8 for trial in trials.values()), trials
    wide = {"tolerance": 100, "quality": {"perplexity_ratio": 3, "agreement": 0.2, "max_kl": 20}}
    assert build(tmp_path, source, precision="int4", group_size=32, **wide).outcome == "published"


def test_the_longest_text_chooses_the_factors_of_longrope(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", "phi3", **_LONGROPE)
    assert build(tmp_path, source).outcome == "published"
    short = load_flover_manifest(tmp_path / "r/writer/1")
    assert (short.max_length, short.form.positions) == (_TRAINED, POSITIONS)
    assert build(tmp_path, source, max_length=100).outcome == "published"
    long = load_flover_manifest(tmp_path / "r/writer/2")
    assert short.verification.match_rate == long.verification.match_rate == 1.0
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    prompt = np.arange(70)
    generation = Generation(prompt, 12, 0)
    generate_together(open_runner(long, tmp_path / "r/writer/2"), [generation], np.random.default_rng(0))
    assert generation.tokens == generated_by_transformers(model, prompt, 12)


def test_other_mixtures_of_experts_are_refused_by_name(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", "llama")
    transformers.DeepseekV3Config(architectures=["DeepseekV3ForCausalLM"]).save_pretrained(source)
    with pytest.raises(
        InvalidArgument, match=r"field 'model': model_type 'deepseek_v3' .*: it is a mixture of experts"
    ):
        build(tmp_path, source)


def test_mixtures_of_experts_are_refused_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_decoder(tmp_path / "source", "mixtral")
    monkeypatch.setattr("tidal_builders.flover.plan.choose_device", lambda *_: "gpu")
    with pytest.raises(Unsupported, match=r"field 'device': a mixture of experts \(mixtral\) .*: set device: cpu"):
        build(tmp_path, source)
