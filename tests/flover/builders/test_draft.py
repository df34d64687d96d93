"""The build of a draft model with a decoder: what is published, what is opened, and models that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.decoders import POSITIONS, VOCABULARY, write_decoder, write_deepened
from testing.models import make_tiny_classifier
from tests.flover.builders.test_build import run_build
from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.manifest import DRAFT_FILE, DraftManifest, FloverManifest, load_flover_manifest
from tidal.flover.opening import open_runners
from tidal.repository.entries import ModelEntry
from tidal_builders.flover.report import FloverReport, step_table
from tidal_builders.specs import load_spec

pytestmark = pytest.mark.slow

_MIB = 1 << 20


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A decoder, and a smaller one that computes the same."""
    folder = tmp_path_factory.mktemp("sources")
    return write_deepened(folder / "deep"), write_decoder(folder / "small")


Build = Callable[..., FloverReport]


@pytest.fixture
def build(tmp_path: Path, sources: tuple[Path, Path]) -> Build:
    def run(**draft: Any) -> FloverReport:
        return run_build(tmp_path, sources[0], draft={"model": str(sources[1]), **draft})

    return run


def published(folder: Path, version: int = 1) -> tuple[FloverManifest, DraftManifest]:
    manifest = load_flover_manifest(folder / f"r/writer/{version}")
    manifest.check_files(folder / f"r/writer/{version}")
    assert manifest.draft is not None
    return manifest, manifest.draft


def test_the_draft_model_is_part_of_the_version(build: Build, tmp_path: Path, sources: tuple[Path, Path]) -> None:
    report = build(precision="fp32", tokens=3)
    manifest, draft = published(tmp_path)
    files = {file.path for file in manifest.files}
    assert files == {"engines/weights.safetensors", DRAFT_FILE, "tokenizer/tokenizer.json"}
    assert (draft.source.model, draft.source.architecture) == (str(sources[1]), "GPT2LMHeadModel")
    assert (draft.precision, draft.tokens, draft.max_length, draft.form.layers) == ("fp32", 3, POSITIONS, 2)
    assert draft.agreement == 1.0
    assert draft.profile.step.batches == (1, 2, 3)
    assert draft.memory_bytes * 4 == manifest.memory_bytes
    assert "draft model: " in str(step_table(report).caption)
    assert "100.0% of the most likely tokens" in str(step_table(report).caption)
    assert FloverManifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_other_precisions_agree_less(build: Build, tmp_path: Path) -> None:
    assert build().outcome == "published"
    _, chosen = published(tmp_path)
    assert chosen.precision in ("bf16", "int8")
    assert build(precision="int4").version == 2
    _, coarse = published(tmp_path, 2)
    assert (coarse.precision, coarse.group_size) == ("int4", 64)
    assert 0.3 < coarse.agreement < chosen.agreement
    assert chosen.agreement > 0.9


def test_a_changed_draft_model_is_built_again(tmp_path: Path, sources: tuple[Path, Path]) -> None:
    own = write_decoder(tmp_path / "own")
    first = run_build(tmp_path, sources[0], draft={"model": str(own)})
    assert (first.version, run_build(tmp_path, sources[0], draft={"model": str(own)}).outcome) == (1, "current")
    write_decoder(own, seed=1)
    again = run_build(tmp_path, sources[0], draft={"model": str(own)})
    assert (again.version, again.reasons) == (2, ("draft files changed",))
    assert published(tmp_path, 2)[1].agreement < 0.5
    assert run_build(tmp_path, sources[0]).version == 3
    manifest = load_flover_manifest(tmp_path / "r/writer/3")
    assert manifest.draft is None
    assert not (tmp_path / "r/writer/3" / DRAFT_FILE).exists()


def test_an_interrupted_build_keeps_the_stages_of_the_draft_model(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tidal_builders.flover.draft.text_agreement", killed)
        with pytest.raises(KeyboardInterrupt):
            build(precision="bf16")
    assert {"draft-weights-bf16"} <= set(build(precision="bf16").reused)


def test_keys_and_values_share_one_budget(build: Build, tmp_path: Path) -> None:
    """A full slot of this decoder takes eight layers' pages, and one of its draft model two layers'."""
    build(precision="bf16")
    manifest, _ = published(tmp_path)
    version = tmp_path / "r/writer/1"
    runner, draft = open_runners(manifest, version)
    assert draft is not None
    assert (draft.slots, draft.max_length, draft.budget) == (3, POSITIONS, 3 * draft.pages.bytes(POSITIONS))
    own, other = draft.pages.bytes(POSITIONS), runner.pages.bytes(POSITIONS)
    for slots in (1.0, 1.5, 2.0):
        limit = slots * (own + other) / _MIB
        limited, small = open_runners(manifest, version, limit)
        assert small is not None
        assert own <= small.budget
        assert other <= limited.budget
        assert small.budget + limited.budget <= limit * _MIB
    with pytest.raises(InvalidArgument, match=r"a sequence of 128 tokens.* takes .* MiB and .* MiB in the draft model"):
        open_runners(manifest, version, 0.9 * (own + other) / _MIB)
    assert open_runners(manifest, version, 0.9 * (own + other) / _MIB, drafts=False).draft is None


def test_a_draft_model_with_fewer_positions_drafts_up_to_them(tmp_path: Path, sources: tuple[Path, Path]) -> None:
    short = write_decoder(tmp_path / "short", n_positions=32, vocab_size=VOCABULARY + 7)
    run_build(tmp_path, sources[0], draft={"model": str(short)})
    _, draft = published(tmp_path)
    assert (draft.max_length, draft.form.vocabulary) == (32, VOCABULARY + 7)


def test_other_vocabularies_are_refused(tmp_path: Path, sources: tuple[Path, Path]) -> None:
    own = write_decoder(tmp_path / "own")
    file = own / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match=r"field 'draft.model': .* in 2 tokens, such as 'A' \(id \d+ instead of"):
        run_build(tmp_path, sources[0], draft={"model": str(own)})
    assert ModelEntry(tmp_path / "r/writer").versions() == []


def test_models_that_cannot_draft_are_refused(tmp_path: Path, sources: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidArgument, match=r"field 'draft\.model': there is no folder"):
        run_build(tmp_path, sources[0], draft={"model": "./nothing"})
    classifier = make_tiny_classifier(tmp_path / "classifier")
    with pytest.raises(InvalidArgument, match=r"field 'draft.model': kind 'flover' cannot serve .* a text classifier"):
        run_build(tmp_path, sources[0], draft={"model": str(classifier)})
    own = write_decoder(tmp_path / "own")
    (own / "model.safetensors").rename(own / "pytorch_model.bin")
    with pytest.raises(InvalidArgument, match=r"field 'draft\.model': .* has no weights as safetensors"):
        run_build(tmp_path, sources[0], draft={"model": str(own)})


def test_a_draft_model_requires_the_kernels(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal_builders.flover.plan.library", lambda: None)
    with pytest.raises(Unsupported, match=r"field 'draft': a draft model requires the native kernels of a CPU"):
        build(precision="bf16")


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({}, "field 'model': field required"),
        ({"model": "x", "tokens": 16}, "field 'tokens': input should be less than or equal to 15"),
        (
            {"model": "x", "precision": "fp8"},
            "field 'precision': input should be 'fp32', 'bf16', 'int8', 'int4' or",
        ),
        ({"model": "x", "number": 1}, "unknown field 'number': accepted: model, precision, revision, tokens"),
    ],
)
def test_invalid_fields_are_named(tmp_path: Path, draft: dict[str, Any], message: str) -> None:
    path = tmp_path / "writer.yaml"
    path.write_text(yaml.safe_dump({"kind": "flover", "name": "writer", "model": "x", "draft": draft}))
    with pytest.raises(InvalidArgument, match=f"field 'draft': {message}"):
        load_spec(path)
