"""Published versions, compared with their source model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from testing.models import make_tiny_classifier
from tidal import device
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.model import open_model, padded_length
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.engines import open_engines
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo import choices, stages
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.plan import plan_arlo
from tidal_builders.arlo.report import ArloReport
from tidal_builders.specs import load_spec

pytestmark = pytest.mark.slow

Published = tuple[Path, Path, ArloReport]
WriteSpec = Callable[..., Path]
TEXTS = ["good", "the service was not very good but the food was great, really!", "book a flight to the city, please"]


def _latest(repository: Path, name: str = "tiny") -> tuple[Path, ArloManifest]:
    folder = ModelEntry(repository / name).latest()
    assert folder is not None
    return folder, load_arlo_manifest(folder)


def _tokens(folder: Path, manifest: ArloManifest, text: str, length: int) -> dict[str, np.ndarray]:
    encoding = Tokenizer.from_file(str(folder / manifest.tokenizer.file)).encode(text)
    values = {
        "input_ids": encoding.ids,
        "attention_mask": encoding.attention_mask,
        "token_type_ids": encoding.type_ids,
    }
    return {name: np.pad(np.asarray([row], np.int64), ((0, 0), (0, length - len(row)))) for name, row in values.items()}


def test_published_engines_give_the_outputs_of_the_source_model(published: Published, tiny: Path) -> None:
    _, repository, _ = published
    folder, manifest = _latest(repository)
    manifest.check(folder, device.cpu())
    (engine,) = open_engines(manifest.artifact(manifest.runtimes[-1], folder))
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForSequenceClassification.from_pretrained(tiny, attn_implementation="eager").eval()
    for text in TEXTS:
        got = engine.run(_tokens(folder, manifest, text, manifest.max_length))  # whichever form was faster here
        inputs = tokenizer(text, return_tensors="pt")
        count = inputs["input_ids"].shape[1]
        with torch.inference_mode():
            expected = model(**inputs, output_attentions=True)
        assert np.abs(got["logits"][0] - expected.logits[0].numpy()).max() <= 1e-3
        received = sum(layer[0].sum(dim=(0, 1)) for layer in expected.attentions).numpy()
        np.testing.assert_allclose(got["attention_received"][0, :count], received, rtol=1e-3)
        np.testing.assert_allclose(got["attention_received"][0, count:], 0, atol=1e-3)
        # Each row of attention weights sums to 1, in every head and layer.
        assert got["attention_received"].sum() == pytest.approx(count * 2 * 2, rel=1e-3)


def test_the_manifest_describes_the_version(published: Published) -> None:
    spec, repository, report = published
    _, manifest = _latest(repository)
    assert report.outcome == "published"
    assert report.version == 1
    assert manifest.labels == ("negative", "neutral", "positive")
    assert [runtime.max_length for runtime in manifest.runtimes] == [16, 64]
    assert manifest.tokenizer.type_ids
    assert manifest.source.architecture == "BertForSequenceClassification"
    assert [output.name for output in manifest.extra_outputs] == ["attention_received"]
    assert manifest.verification.max_abs_error <= 1e-3
    assert manifest.verification.argmax_agreement == 1.0
    assert manifest.verification.samples >= 50
    assert manifest.profile.batches == (1, 2, 4)
    assert set(manifest.profile.lengths) >= {16, 64}
    assert manifest.rebuild_command(repository) == f"tidal build {spec} --repository {repository} --force"
    forms = {trial.form: trial for trial in manifest.trials if trial.mean_ms is not None}
    assert set(forms) == {"static", "dynamic"}
    chosen = "dynamic" if manifest.runtimes[0].dynamic else "static"
    assert forms[chosen].verdict == "chosen"


def test_the_published_tokenizer_neither_truncates_nor_pads(published: Published) -> None:
    folder, manifest = _latest(published[1])
    content = json.loads((folder / manifest.tokenizer.file).read_text())
    assert content["truncation"] is None
    assert content["padding"] is None


def test_the_config_is_that_of_the_spec(published: Published) -> None:
    text = (published[1] / "tiny/config.pbtxt").read_text()
    for part in ('backend: "arlo"', "max_batch_size: 64", "dynamic_batching { }", 'key: "truncate"'):
        assert part in text
    assert "attention_received" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"form": "static"},
        {"engine": "torch", "max_batch": 1, "lengths": [5, 16]},
        {"contexts": 2, "threads": 1, "max_batch": 1},
    ],
)
def test_other_forms_and_engines(write_spec: WriteSpec, tmp_path: Path, tiny: Path, fields: dict[str, object]) -> None:
    spec_file = write_spec(**fields)
    report = build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    folder, manifest = _latest(tmp_path / "r")
    assert report.outcome == "published"
    assert manifest.engine == fields.get("engine", "openvino")
    assert manifest.runtimes[0].dynamic == (fields.get("form") != "static")
    (engine,) = open_engines(manifest.artifact(manifest.runtimes[0], folder))
    logits = engine.run(_tokens(folder, manifest, TEXTS[0], manifest.runtimes[0].max_length))["logits"][0]
    inputs = AutoTokenizer.from_pretrained(tiny)(TEXTS[0], return_tensors="pt")
    with torch.inference_mode():
        expected = AutoModelForSequenceClassification.from_pretrained(tiny).eval()(**inputs).logits[0].numpy()
    assert np.abs(logits - expected).max() <= 1e-3


def test_engines_without_a_choice_are_opened_and_compared_once(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the precision was verified with are profiled and published."""

    def refuse(*_: object) -> None:
        raise AssertionError("opened again")

    monkeypatch.setattr(stages, "open_form", refuse)
    spec_file = write_spec(threads=1, max_batch=1)
    report = build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    assert report.outcome == "published"
    assert [row.length for row in report.rows] == [8, 16, 64]
    assert all(row.max_error is not None and row.max_error <= 1e-3 for row in report.rows)
    assert _latest(tmp_path / "r")[1].verification.samples >= 50


def test_lengths_are_derived_from_a_saved_latency_curve(write_spec: WriteSpec, tmp_path: Path) -> None:
    short = make_tiny_classifier(tmp_path / "short", layers=1, max_position=32)
    spec_file = write_spec(model=str(short), lengths="auto", form="static", max_batch=1)
    build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    folder, manifest = _latest(tmp_path / "r")
    curve = json.loads((folder / "latency_curve.json").read_text())
    assert curve["lengths"] == list(range(8, 33, 8))
    assert len(curve["static_ms"]) == len(curve["dynamic_ms"]) == 4
    assert {runtime.max_length for runtime in manifest.runtimes} <= set(curve["lengths"])
    assert (folder / "latency_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert manifest.max_length == 32
    assert {"latency_curve.png", "latency_curve.json"} <= {file.path for file in manifest.files}


def test_static_runtimes_for_short_inputs_beside_a_dynamic_one(
    write_spec: WriteSpec, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurements are replaced, since which form is faster depends on the machine; the rest is real."""
    grid = (8, 16, 24, 32, 40, 48, 56, 64)
    static = tuple(0.2 + length / 64 for length in grid)
    dynamic = tuple(each + (0.3 if length <= 16 else -0.1) for each, length in zip(static, grid, strict=True))
    curve = choices.Curve(lengths=grid, static_ms=static, dynamic_ms=dynamic)
    monkeypatch.setattr(choices, "_measure_curve", lambda *_: curve)
    means = {"dynamic": 3.0, "mixed": 1.0, "static": 2.0}
    monkeypatch.setattr(choices, "mean_latencies", lambda forms, *_: {form: means[form] for form in forms})
    spec_file = write_spec(lengths="auto", form="auto", max_batch=2)
    report = build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    folder, manifest = _latest(tmp_path / "r")
    assert report.form == manifest.form == "mixed"
    assert [(each.max_length, each.dynamic) for each in manifest.runtimes[:1]] == [(16, False)]
    assert all(each.dynamic for each in manifest.runtimes[1:])
    assert manifest.static_upto == 16
    assert [trial.verdict for trial in manifest.trials if trial.choice == "form"] == ["slower", "chosen", "slower"]
    model = open_model(folder)
    source = AutoModelForSequenceClassification.from_pretrained(tiny).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    for words, padded in ((2, 16), (14, 16), (20, 22)):
        inputs = tokenizer(" ".join(["good"] * words), return_tensors="pt")
        ids = inputs["input_ids"][0].numpy()
        runtime = next(at for at, each in enumerate(manifest.runtimes) if each.max_length >= len(ids))
        assert padded_length(manifest, runtime, len(ids)) == padded
        row = TokenRow(ids, np.ones_like(ids), np.zeros_like(ids))
        with torch.inference_mode():
            expected = source(**inputs).logits[0].numpy()
        np.testing.assert_allclose(model.run(0, runtime, [row])["logits"][0], expected, atol=1e-3)


def test_auto_selects_the_most_precise_within_3_percent_of_the_fastest(write_spec: WriteSpec, tmp_path: Path) -> None:
    spec_file = write_spec(precision="auto", tolerance=1e-3)
    report = build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    assert report.precision == "fp32"
    verdicts = {trial.precision: trial for trial in report.trials if trial.form == "dynamic"}
    assert set(verdicts) == {"fp32", "bf16", "int8"}
    assert verdicts["int8"].verdict == "misses tolerance"
    assert (verdicts["int8"].max_abs_error or 0) > 1e-3


def test_samples_and_labels_of_the_spec(write_spec: WriteSpec, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("good film\nbad film\n\nthe food was slow and the hotel was worse\n")
    spec_file = write_spec(samples="lines.txt", labels=["a", "b", "c"], lengths=[16], max_batch=1)
    build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    assert _latest(tmp_path / "r")[1].labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": [16, 65]}, "65 tokens exceed the model's longest input of 64"),
        ({"labels": ["yes", "no"]}, "expected 3 labels, one per class of the model, got 2"),
        ({"engine": "torch", "precision": "int8"}, "engine torch does not support int8 on a cpu"),
        ({"model": "./nothing"}, "there is no folder"),
        ({"samples": "nothing.txt"}, "field 'samples': there is no file"),
        ({"lengths_like": "nothing.txt"}, "field 'lengths_like': there is no file"),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused(
    write_spec: WriteSpec, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    spec_file = write_spec(**fields)
    with pytest.raises(InvalidArgument, match=message):
        build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    assert ModelEntry(tmp_path / "r/tiny").versions() == []


def test_a_model_without_a_trained_head_is_refused(tmp_path: Path, tiny: Path, write_spec: WriteSpec) -> None:
    from transformers import AutoModel

    headless = tmp_path / "headless"
    shutil.copytree(tiny, headless)
    AutoModel.from_pretrained(tiny).save_pretrained(headless)
    spec_file = write_spec(model=str(headless))
    with pytest.raises(InvalidArgument, match=r"leave it open \(found BertModel\); set task to embedding"):
        build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)
    # A configuration of a classifier does not add its weights.
    shutil.copy(tiny / "config.json", headless)
    with pytest.raises(InvalidArgument, match=r"no weights for classifier.bias, classifier.weight"):
        build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)


def test_pickled_weights_are_refused(tmp_path: Path, tiny: Path, write_spec: WriteSpec) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(tiny, pickled)
    (pickled / "model.safetensors").unlink()
    model = AutoModelForSequenceClassification.from_pretrained(tiny)
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    spec_file = write_spec(model=str(pickled))
    with pytest.raises(InvalidArgument, match=r"has no weights as safetensors.*save the model with `save_pretrained"):
        build_arlo(load_spec(spec_file), tmp_path / "r", spec_file=spec_file)


def test_a_changed_source_model_makes_the_version_stale(copied: tuple[Path, Path]) -> None:
    spec_file, repository = copied
    spec = load_spec(spec_file)
    again = build_arlo(spec, repository, spec_file=spec_file)
    assert (again.outcome, again.version) == ("current", 1)
    make_tiny_classifier(spec_file.parent / "source", max_position=64, seed=1)
    assert plan_arlo(spec, repository, spec_file.parent).reasons == ("source files changed",)


def test_a_damaged_version_is_built_again_with_the_same_config(copied: tuple[Path, Path]) -> None:
    spec_file, repository = copied
    (repository / "tiny/config.pbtxt").write_text("# mine\n")
    (repository / "tiny/1/engines/model.bin").write_bytes(b"short")
    report = build_arlo(load_spec(spec_file), repository, spec_file=spec_file)
    assert (report.outcome, report.version) == ("published", 2)
    assert "model.bin differs from what was published" in report.reasons[0]
    assert ModelEntry(repository / "tiny").versions() == [1, 2]
    assert (repository / "tiny/config.pbtxt").read_text() == "# mine\n"


def test_another_device_or_library_is_refused_with_the_rebuild_command(published: Published) -> None:
    spec, repository, _ = published
    folder, manifest = _latest(repository)
    other = device.cpu().model_copy(update={"name": "Other CPU"})
    command = f"tidal build {spec} --repository {repository} --force"
    with pytest.raises(InvalidArgument, match=rf"this machine is Other CPU.*rebuild with `{command}`"):
        manifest.check(folder, other)
    older = manifest.model_copy(update={"libraries": {**manifest.libraries, "openvino": "2024.0"}})
    with pytest.raises(InvalidArgument, match=r"built with openvino 2024.0, installed is .*rebuild with `tidal build"):
        older.check(folder, device.cpu())
