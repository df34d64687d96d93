"""The build of a decoder: published files, profile, verification, and refused sources."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoTokenizer

from testing.decoders import EOS, POSITIONS, write_decoder
from testing.models import make_tiny_classifier
from tidal.catalog.manifests import load_published
from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.chat import CHAT_FILE, ChatFormat
from tidal.flover.manifest import FloverManifest, load_flover_manifest
from tidal.flover.memory.buffers import buffer_bytes
from tidal.flover.opening import open_runner
from tidal.repository.entries import ModelEntry
from tidal_builders.flover.build import build_flover
from tidal_builders.flover.profiling import chunk_contexts, doubling
from tidal_builders.flover.report import FloverReport, step_table
from tidal_builders.specs import load_spec

pytestmark = pytest.mark.slow

Published = tuple[Path, Path, FloverReport]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("source") / "tiny")


def run_build(folder: Path, source: Path, *, force: bool = False, **fields: Any) -> FloverReport:
    """Build the model "writer" into `folder / "r"`; fields given replace those of its spec."""
    content = {"kind": "flover", "name": "writer", "model": str(source), "max_concurrency": 3, "threads": 1}
    path = folder / "writer.yaml"
    path.write_text(yaml.safe_dump(content | {"profile_seconds": 0.01} | fields))
    spec: Any = load_spec(path)
    return build_flover(spec, folder / "r", spec_file=path, force=force)


@pytest.fixture
def build(tmp_path: Path, source: Path) -> Callable[..., FloverReport]:
    def run(**fields: Any) -> FloverReport:
        return run_build(tmp_path, fields.pop("source", source), **fields)

    return run


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Published:
    """The source, a version built from it, and the report. Not to be changed."""
    folder = tmp_path_factory.mktemp("published")
    report = run_build(folder, source)
    return source, folder / "r/writer/1", report


def test_the_version_is_complete_and_verified(published: Published) -> None:
    _, folder, report = published
    manifest = load_published(folder)
    assert isinstance(manifest, FloverManifest)
    manifest.check_files(folder)
    assert {file.path for file in manifest.files} == {"engines/weights.safetensors", "tokenizer/tokenizer.json"}
    assert (report.outcome, report.version, report.precision) == ("published", 1, "fp32")
    assert manifest.trials == ()
    assert (manifest.max_concurrency, manifest.max_length, manifest.eos_token_ids) == (3, POSITIONS, (EOS,))
    assert manifest.verification.prompts == 8
    assert manifest.verification.tokens > 150
    config = (folder.parent / "config.pbtxt").read_text()
    assert 'backend: "flover"' in config
    assert "decoupled: true" in config


def test_precisions_are_compared(build: Callable[..., FloverReport], tmp_path: Path) -> None:
    assert build(precision="auto").outcome == "published"
    manifest = load_flover_manifest(tmp_path / "r/writer/1")
    exact, short, integers = manifest.trials
    assert integers.precision == "int8"
    assert (exact.precision, exact.match_rate) == ("fp32", 1.0)
    assert exact.max_error < 1e-4 < short.max_error
    chosen = min((each for each in manifest.trials if each.step_ms is not None), key=lambda each: each.step_ms or 0)
    assert (manifest.precision, chosen.verdict) == (chosen.precision, "chosen")


def test_steps_and_prompts_are_profiled(published: Published) -> None:
    _, folder, report = published
    manifest = load_flover_manifest(folder)
    assert (manifest.profile.step.lengths, manifest.profile.step.batches) == ((64, POSITIONS), (1, 2, 3))
    assert (manifest.profile.chunk.lengths, manifest.profile.chunk.batches) == ((1, POSITIONS - 63), (1, 16, 64))
    assert chunk_contexts(1000, (1, 16, 256)) == {
        0: (1, 16, 256),
        256: (1, 16, 256),
        512: (1, 16, 256),
        744: (1, 16, 256),
    }
    assert chunk_contexts(300, (1, 16, 256)) == {0: (1, 16, 256), 44: (1, 16, 256), 256: (1, 16)}
    assert [(row.length, row.slots) for row in report.rows[:4]] == [(64, 1), (64, 2), (64, 3), (POSITIONS, 1)]
    assert step_table(report).row_count == 6
    assert doubling(1, 8) == (1, 2, 4, 8)
    assert doubling(64, 48) == (48,)


def test_a_published_version_generates(published: Published) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.flover.generating import Generation, generate_together, generated_by_transformers

    source, folder, _ = published
    manifest = load_flover_manifest(folder)
    runner = open_runner(manifest, folder)
    assert runner.memory_bytes == manifest.memory_bytes
    prompt = np.array(AutoTokenizer.from_pretrained(source)("Once upon a time")["input_ids"])
    generation = Generation(prompt, 12, 0)
    generate_together(runner, [generation], np.random.default_rng(0))
    model = AutoModelForCausalLM.from_pretrained(source)
    assert generation.tokens == generated_by_transformers(model, prompt, 12)


def test_a_current_version_is_not_built_again(build: Callable[..., FloverReport]) -> None:
    assert build().outcome == "published"
    again = build()
    assert (again.outcome, again.version, len(again.rows)) == ("current", 1, 6)
    changed = build(max_concurrency=2)
    assert (changed.version, changed.reasons) == (2, ("spec.max_concurrency changed from 3 to 2",))
    assert build(max_concurrency=2, force=True).reasons == ("forced",)


def test_an_interrupted_build_is_resumed(
    build: Callable[..., FloverReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tidal_builders.flover.stages.measure_profile", killed)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert ModelEntry(tmp_path / "r/writer").versions() == []
    report = build()
    assert (report.outcome, set(report.reused)) == (
        "published",
        {"source", "weights-fp32", "verified-fp32", "text-fp32"},
    )


def test_a_version_outside_its_tolerance_is_not_published(build: Callable[..., FloverReport], tmp_path: Path) -> None:
    report = build(precision="auto", tolerance=1e-12)
    assert report.outcome == "missed"
    assert [reason.split(":")[0] for reason in report.reasons if "largest error" in reason] == [
        "fp32",
        "bf16",
        "int8",
    ]
    assert ModelEntry(tmp_path / "r/writer").versions() == []


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (
            {"perplexity_ratio": 1.0001, "agreement": 0, "max_kl": 100},
            r"int4: perplexity on text is 1\.\d+ times the source's",
        ),
        ({"perplexity_ratio": 100, "agreement": 1, "max_kl": 100}, r"int4: \d\d\.\d% of the most likely next tokens"),
        (
            {"perplexity_ratio": 100, "agreement": 0, "max_kl": 1e-6},
            r"int4: a next-token distribution on text diverges by",
        ),
    ],
)
def test_a_bound_on_text_that_is_missed_is_the_reason(
    build: Callable[..., FloverReport], tmp_path: Path, bounds: dict[str, float], reason: str
) -> None:
    report = build(precision="int4", tolerance=100, quality=bounds)
    assert report.outcome == "missed"
    assert len([each for each in report.reasons if "on text" in each]) == 1
    assert any(re.match(reason, each) for each in report.reasons), report.reasons
    assert ModelEntry(tmp_path / "r/writer").versions() == []


def test_integers_require_the_kernels(build: Callable[..., FloverReport], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal_builders.flover.plan.library", lambda: None)
    with pytest.raises(Unsupported, match=r"field 'precision': int8 requires the native kernels of a CPU.*not built"):
        build(precision="int8")


def test_keys_and_values_of_integers_are_verified(build: Callable[..., FloverReport], tmp_path: Path) -> None:
    report = build(kv_cache_dtype="int8")
    assert report.outcome == "published"
    assert str(step_table(report).title).startswith("writer: fp32 with int8 keys and values, 3 slots of 128 tokens in")
    version = tmp_path / "r/writer/1"
    manifest = load_flover_manifest(version)
    assert (manifest.kv_cache_dtype, manifest.precision) == ("int8", "fp32")
    assert manifest.memory_bytes == buffer_bytes(manifest.form, 3, POSITIONS, torch.int8)
    assert open_runner(manifest, version)._buffers.layers[0].dtype == torch.int8
    bounds = manifest.text.bounds
    assert (bounds.perplexity_ratio, bounds.agreement, bounds.max_kl) == (1.02, 0.9, 0.1)
    assert 0 < manifest.text.max_kl <= bounds.max_kl
    assert 1e-4 < manifest.verification.max_error < manifest.verification.tolerance == 0.5
    missed = build(kv_cache_dtype="int8", quality={"max_kl": manifest.text.max_kl / 2})
    assert (missed.outcome, missed.version) == ("missed", None)
    assert "diverges by" in missed.reasons[0]
    assert ModelEntry(tmp_path / "r/writer").versions() == [1]


def test_keys_and_values_of_integers_require_the_kernels(
    build: Callable[..., FloverReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal_builders.flover.plan.library", lambda: None)
    with pytest.raises(Unsupported, match=r"field 'kv_cache_dtype': int8 requires the native kernels of a CPU"):
        build(kv_cache_dtype="int8")


def test_wrong_tokens_fail_the_verification(
    build: Callable[..., FloverReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidal.flover.models import linear

    monkeypatch.setitem(linear._FUSED, "gelu_new", ("relu", ""))
    monkeypatch.setitem(linear.ACTIVATION_NUMBERS, "gelu_new", linear.ACTIVATION_NUMBERS["relu"])
    report = build()
    assert report.outcome == "missed"
    assert any("of the tokens match the source" in reason for reason in report.reasons)


def test_slots_that_do_not_fit_are_refused(build: Callable[..., FloverReport], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidal_builders.flover.stages.available_bytes", lambda _device: 1000)
    with pytest.raises(InvalidArgument, match=r"3 slots of 128 tokens, one of them full, take [\d,]+ bytes.*1,000"):
        build()


def test_a_budget_of_keys_and_values(build: Callable[..., FloverReport], tmp_path: Path) -> None:
    """A full slot takes 256 KiB, so that two of three fit."""
    wide = write_decoder(tmp_path / "wide", "gpt2", n_embd=128, n_head=2)
    assert build(source=wide, kv_cache_mb=0.5).outcome == "published"
    version = tmp_path / "r/writer/1"
    manifest = load_flover_manifest(version)
    assert (manifest.kv_cache_mb, open_runner(manifest, version).budget) == (0.5, 1 << 19)
    assert open_runner(manifest, version, 0.6).budget == int(0.6 * (1 << 20))
    # Steps of all slots with 128 tokens exceed the budget: they get the duration of two slots.
    (_, two, three) = manifest.profile.step.median_ms[-1]
    assert three == pytest.approx(1.5 * two)
    with pytest.raises(InvalidArgument, match=r"kv_cache_mb is 0.2; a sequence of 128 tokens, .* takes 0.25 MiB"):
        open_runner(manifest, version, 0.2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "./nothing"}, "there is no folder"),
        ({"samples": "nothing.txt"}, "there is no file"),
        ({"max_length": 129}, "129 tokens exceed the model's longest sequence of 128"),
    ],
)
def test_invalid_specs_are_refused(build: Callable[..., FloverReport], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build(**fields)


def test_other_models_and_pickled_weights_are_refused(build: Callable[..., FloverReport], tmp_path: Path) -> None:
    classifier = make_tiny_classifier(tmp_path / "classifier")
    with pytest.raises(InvalidArgument, match=r"kind 'flover' cannot serve .*: it is a text classifier"):
        build(source=classifier)
    config = classifier / "config.json"
    config.write_text(config.read_text().replace("BertForSequenceClassification", "BertForCausalLM"))
    with pytest.raises(InvalidArgument, match="field 'model': model_type 'bert' is not supported"):
        build(source=classifier)
    (classifier / "model.safetensors").rename(classifier / "pytorch_model.bin")
    with pytest.raises(InvalidArgument, match="has no weights as safetensors"):
        build(source=classifier)


@pytest.mark.parametrize("templates", ["{{ messages[0].content }}", {"default": "a", "tool_use": "b"}], ids=str)
def test_the_chat_template_is_published(build: Callable[..., FloverReport], source: Path, tmp_path: Path,
                                        templates: Any) -> None:  # fmt: skip
    chat = tmp_path / "chat"
    shutil.copytree(source, chat)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(chat)
    assert build(source=chat).outcome == "published"
    version = tmp_path / "r/writer/1"
    published = ChatFormat.model_validate_json((version / CHAT_FILE).read_bytes())
    assert published.templates == (templates if isinstance(templates, dict) else {"default": templates})
    assert published.special_tokens == tokenizer.special_tokens_map
    assert CHAT_FILE in {file.path for file in load_flover_manifest(version).files}
    tokenizer.chat_template = "{% if %}"
    tokenizer.save_pretrained(chat)
    with pytest.raises(InvalidArgument, match="the chat template 'default' is not valid Jinja"):
        build(source=chat)


def test_the_manifest_states_the_memory(published: Published) -> None:
    manifest = load_flover_manifest(published[1])
    assert manifest.memory_bytes == buffer_bytes(manifest.form, 3, POSITIONS, torch.float32)
    text = manifest.model_dump_json()
    assert FloverManifest.model_validate_json(text) == manifest
    wrong = re.sub(r'"max_length":128', '"max_length":129', text)
    with pytest.raises(ValueError, match="max_length is 129, must be at most 128"):
        FloverManifest.model_validate_json(wrong)
