"""A cascade from two source models and a labelled file to a published version."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.tabi.builders.command import tidal_build
from tests.tabi.builders.conftest import LABELS, Built, answers_of, steady_latencies, write_spec
from tidal.arlo.manifest import load_arlo_manifest
from tidal.errors import InvalidArgument
from tidal.repository.config import read_config
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import TabiManifest, Target, load_tabi_manifest
from tidal.tabi.selection import select
from tidal_builders.tabi.collect import LevelRunner, collect
from tidal_builders.tabi.publish import named_versions
from tidal_builders.tabi.report import CascadeReport
from tidal_builders.tabi.search_report import SearchReport
from tidal_builders.workspace import Workspace

pytestmark = pytest.mark.slow


def manifest_of(repository: Path, name: str = "reviews") -> TabiManifest:
    folder = ModelEntry(repository / name).latest()
    assert folder is not None
    return load_tabi_manifest(folder)


def change(spec: Path, **fields: Any) -> None:
    spec.write_text(yaml.safe_dump({**yaml.safe_load(spec.read_text()), **fields}))


def test_the_manifest_contains_the_measurements(built: Built, labelled: Path) -> None:
    manifest = manifest_of(built.repository)
    manifest.check_files(built.repository / "reviews/1")
    assert (manifest.task, manifest.pairs, manifest.metric, manifest.labels) == (
        "classification",
        False,
        "accuracy",
        LABELS,
    )
    assert sum(manifest.rows.values()) == len(labelled.read_text().splitlines()) - 1
    assert [level.name for level in manifest.levels] == ["small", "large"]
    small, large = manifest.levels
    assert (small.model, small.version, small.attention, small.order) == ("reviews_small", 1, True, None)
    assert (large.model, large.version, large.attention, large.order) == ("reviews_large", 1, False, (2, 1, 0))
    # The labels are the answers of the large model: it is always right, unless its classes are in the wrong order.
    assert large.score == pytest.approx(1.0)
    assert small.score < 0.9
    for level in manifest.levels:
        assert level.calibration.ece_before is not None
        assert level.calibration.ece_after is not None
        assert level.fingerprint == load_arlo_manifest(built.repository / level.model / "1").fingerprint
        assert (built.repository / "reviews/1" / level.tokenizer.file).is_file()
    assert manifest.candidates[manifest.chosen].selection.score >= 0.9
    assert manifest.chosen == select(manifest.candidates, manifest.target)
    assert {candidate.levels for candidate in manifest.candidates} >= {(0,), (1,), (0, 1)}
    assert manifest.rebuild_command(built.repository).endswith(f"reviews.yaml --repository {built.repository} --force")


def test_levels_with_the_same_tokenizer_share_its_file(built: Built) -> None:
    assert [level.tokenizer.file for level in manifest_of(built.repository).levels] == ["tokenizers/small.json"] * 2


def test_each_level_is_published_as_a_model(built: Built) -> None:
    for name, outputs in (("small", ["attention_received"]), ("large", [])):
        manifest = load_arlo_manifest(built.repository / f"reviews_{name}" / "1")
        assert [output.name for output in manifest.extra_outputs] == outputs
        config = read_config(built.repository / f"reviews_{name}")
        assert config["version_policy"] == {"latest": {"num_versions": 2}}
        assert config["backend"] == "arlo"
    assert load_arlo_manifest(built.repository / "reviews_large/1").labels == LABELS[::-1]


def test_the_config_declares_the_outputs_of_the_backend(built: Built) -> None:
    config = read_config(built.repository / "reviews")
    assert config["backend"] == "tabi"
    # Load generators send every declared input: neither a second text, which is refused, nor an optional one.
    assert [each["name"] for each in config["input"]] == ["text_input"]
    assert "optional" not in config["input"][0]
    assert {each["name"] for each in config["output"]} == {
        "label",
        "probabilities",
        "level",
        "confidence",
        "degraded",
        "input_tokens",
        "pruned_text",
    }


def test_the_command_prints_levels_and_candidates(built: Built) -> None:
    for word in (
        "small+large c=",
        "before",
        "selection",
        "reviews_small: version 1 published",
        "reviews: version 1 pub",
    ):
        assert word in built.done.stdout
    # Without a terminal no cell is truncated or wrapped.
    lines, names = built.done.stdout.splitlines(), {each.name for each in manifest_of(built.repository).candidates}
    shown = next(int(line.split()[0]) for line in lines if " candidates, kept of " in line)
    whole = [line for line in lines if line[2:].split("  ")[0] in names and len(line.split()) >= 7]
    assert len(whole) == shown
    assert max(map(len, whole)) > 60  # COLUMNS of the environment
    assert sum(line.startswith("* ") for line in whole) == 1
    for stage in ("small: compile", "large: verify", "run the levels", "search candidates"):
        assert f"reviews: {stage}" in built.done.stderr


def test_the_report_is_published(built: Built) -> None:
    folder = built.repository / "reviews/1/report"
    report = SearchReport.model_validate_json((folder / "report.json").read_bytes())
    assert report.candidates == manifest_of(built.repository).candidates
    assert sum(each.count for each in report.levels[0].reliability_after) == report.rows["report"]
    for name in ("candidates.png", "reliability.png"):
        assert (folder / name).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.usefixtures("no_model_runs")
def test_a_second_run_does_nothing(built: Built) -> None:
    done = tidal_build(built.spec, "--repository", built.repository)
    first, *warnings = done.stdout.splitlines()
    assert (done.code, first, done.stderr) == (0, "reviews: version 1 is current", "")
    assert all(re.match(r"warning: reviews: \d+ candidates were compared on 30", line) for line in warnings)
    assert tidal_build(built.spec, "--repository", built.repository, "--check").code == 0
    as_json = json.loads(tidal_build(built.spec, "--repository", built.repository, "--json").stdout)
    report = CascadeReport.model_validate(as_json["models"][0])
    assert (report.outcome, report.version, as_json["exit_code"]) == ("current", 1, 0)
    assert report.chosen == manifest_of(built.repository).chosen
    assert report.levels[0].calibration.ece_after is not None


@pytest.mark.usefixtures("no_model_runs")
def test_another_target_selects_again_and_runs_no_model(copied: Built) -> None:
    first = manifest_of(copied.repository)
    done = tidal_build(copied.spec, "--repository", copied.repository, "--target-accuracy", "0.01")
    assert done.code == 0, done.stderr
    assert 'target changed from {"accuracy":0.9} to {"accuracy":0.01}' in done.stdout
    second = manifest_of(copied.repository)
    assert (second.target, second.candidates) == (Target(accuracy=0.01), first.candidates)
    fastest = min(second.candidates, key=lambda each: each.selection.latency.mean)
    assert second.candidates[second.chosen] == fastest
    # Without the option, the target of the file applies again.
    assert tidal_build(copied.spec, "--repository", copied.repository).code == 0
    assert manifest_of(copied.repository).chosen == first.chosen
    assert ModelEntry(copied.repository / "reviews").versions() == [1, 2, 3]
    assert ModelEntry(copied.repository / "reviews_small").versions() == [1]


@pytest.mark.usefixtures("no_model_runs")
def test_a_target_that_no_candidate_meets(copied: Built) -> None:
    done = tidal_build(copied.spec, "--repository", copied.repository, "--target-latency-ms", "0.0001")
    assert done.code == 3
    message = "field 'target': no candidate has a mean latency of 0.0001 ms; the fastest is 'small'"
    assert f"reviews: not published: {message}" in done.stdout
    # The command prints the levels, the closest candidates, and the targets that are possible.
    manifest = manifest_of(copied.repository)
    for level in manifest.levels:
        assert any(
            line.startswith(f"{level.name} ") and f"{level.score:.4f}" in line for line in done.stdout.splitlines()
        )
    best = min(manifest.candidates, key=lambda each: (-each.selection.score, each.selection.latency.mean))
    fastest = manifest.candidates[0]
    for each in (best, fastest):
        assert f"  {each.name} " in done.stdout
    assert "\n* " not in done.stdout
    found = re.search(
        r"possible targets: accuracy up to (\S+) .* latency_ms from (\S+) .* escalation_rate from (\S+) ", done.stdout
    )
    assert found is not None
    for option, value in zip(
        ("--target-accuracy", "--target-latency-ms", "--escalation-rate"), found.groups(), strict=True
    ):
        possible = tidal_build(copied.spec, "--repository", copied.repository, option, value)
        assert possible.code == 0, possible.stdout
    published = ModelEntry(copied.repository / "reviews").versions()
    change(copied.spec, target={"accuracy": 1.01})
    as_json = tidal_build(copied.spec, "--repository", copied.repository, "--json")
    assert as_json.code == 3
    report = CascadeReport.model_validate(json.loads(as_json.stdout)["models"][0])
    assert (report.outcome, report.chosen) == ("missed", None)
    assert "no candidate reaches the accuracy 1.01; the best is 'large' with a score of 1.0000" in report.reasons[0]
    assert len(report.candidates) == len(manifest_of(copied.repository).candidates)
    assert ModelEntry(copied.repository / "reviews").versions() == published


@pytest.mark.usefixtures("no_model_runs")
def test_a_target_relative_to_the_large_level(copied: Built) -> None:
    done = tidal_build(copied.spec, "--repository", copied.repository, "--target-accuracy-loss", "0.4")
    assert done.code == 0, done.stderr
    manifest = manifest_of(copied.repository)
    assert manifest.target == Target(accuracy_loss=0.4)
    large = next(each for each in manifest.candidates if each.levels == (1,))
    chosen = manifest.candidates[manifest.chosen]
    assert chosen.loss is not None
    assert chosen.loss.measured == pytest.approx(large.selection.score - chosen.selection.score)
    assert chosen.loss.measured < chosen.loss.upper <= 0.4
    change(copied.spec, target={"accuracy_loss": 0.4})
    assert tidal_build(copied.spec, "--repository", copied.repository, "--check").code == 0


def test_few_rows_for_many_candidates_cause_a_warning(built: Built) -> None:
    manifest = manifest_of(built.repository)
    report = SearchReport.model_validate_json((built.repository / "reviews/1/report/report.json").read_bytes())
    (warning,) = manifest.warnings
    compared = len(report.candidates)
    assert f"{compared} candidates were compared on {manifest.rows['selection']} selection rows" in warning
    assert report.warnings == manifest.warnings
    assert f"reviews: warning: {warning}" in built.done.stdout


def test_the_choice_of_a_temperature_is_explained(built: Built) -> None:
    manifest = manifest_of(built.repository)
    for level in manifest.levels:
        assert level.calibration.choice is not None
        assert level.calibration.choice.queries == manifest.rows["calibration"] < 50
        assert level.calibration.temperature == 1
        message = (
            f"reviews: {level.name}: T = 1: {manifest.rows['calibration']} queries of the calibration part are too few"
        )
        assert message in built.done.stdout


@pytest.mark.usefixtures("no_model_runs")
def test_targets_on_the_command_line(built: Built, tmp_path: Path, models: Path) -> None:
    both = tidal_build(
        built.spec, "--repository", built.repository, "--target-accuracy", "1", "--escalation-rate", "0.1"
    )
    assert both.code == 2
    assert (
        "expected one of accuracy, accuracy_loss, latency_ms and escalation_rate, got accuracy, escalation_rate"
        in both.stderr
    )
    single = tmp_path / "single.yaml"
    single.write_text(f"kind: arlo\nname: m\nmodel: {models / 'small'}\n")
    alone = tidal_build(single, "--target-accuracy", "0.9", "--check")
    assert alone.code == 2
    assert "no spec is a cascade" in alone.stderr
    taken = tmp_path / "taken.yaml"
    taken.write_text(f"kind: arlo\nname: reviews_small\nmodel: {models / 'small'}\n")
    clash = tidal_build(built.spec, taken, "--repository", built.repository, "--check")
    assert clash.code == 2
    assert "both build a model 'reviews_small'" in clash.stderr


def test_only_a_changed_level_is_built_and_run(
    copied: Built, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    opened: list[str] = []
    from tidal_builders.tabi import collect as module

    def counted(folder: Path, *, truncate: bool) -> object:
        opened.append(folder.parent.name)
        return open_model(folder, truncate=truncate)

    open_model = module.open_model
    monkeypatch.setattr(module, "open_model", counted)
    levels = yaml.safe_load(copied.spec.read_text())["levels"]
    levels[0]["runtimes"] = {"lengths": [32, 64]}
    change(copied.spec, levels=levels)
    done = tidal_build(copied.spec, "--repository", copied.repository, "--check")
    assert done.code == 1
    assert "level small: spec.lengths changed from [16, 64] to [32, 64]" in done.stdout
    assert "level large" not in done.stdout
    with steady_latencies():
        assert tidal_build(copied.spec, "--repository", copied.repository).code == 0
    manifest = manifest_of(copied.repository)
    assert {level.model: level.version for level in manifest.levels} == {"reviews_small": 2, "reviews_large": 1}
    # The large level has run on the same pruned texts before: the attention is unchanged.
    assert opened == ["reviews_small"]
    assert named_versions(ModelEntry(copied.repository / "reviews"), "reviews_small") == {1, 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "nothing.tsv"}, "field 'data': there is no file"),
        ({"metric": "pearson"}, "field 'metric': a classification cascade has accuracy, got pearson"),
        ({"tolerance": 1.0}, "field 'tolerance': for regressions alone"),
        ({"labels": ["a", "b", "c"]}, "level 'small': its labels differ from those of the cascade"),
        ({"columns": {"text": "sentence"}}, "field 'columns': .*no column 'sentence'"),
        ({"parts": {"calibration": 0.01, "selection": 0.01, "report": 0.98}}, "gives the calibration part"),
    ],
)
def test_a_spec_that_cannot_be_built_is_an_error(copied: Built, fields: dict[str, object], message: str) -> None:
    change(copied.spec, **fields)
    done = tidal_build(copied.spec, "--repository", copied.repository)
    assert done.code == 2
    with pytest.raises(InvalidArgument, match=message):
        raise InvalidArgument(done.stderr)


def test_the_error_of_a_level_names_it(models: Path, labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "small", tmp_path / "models/small")
    shutil.copytree(models / "large", tmp_path / "models/large")
    spec = write_spec(tmp_path / "reviews.yaml", tmp_path / "models", labelled)
    (tmp_path / "models/small/model.safetensors").unlink()
    done = tidal_build(spec, "--repository", tmp_path / "r")
    assert done.code == 2
    assert "error: reviews: level 'small': field 'model'" in done.stderr
    assert not ModelEntry(tmp_path / "r/reviews").versions()


def test_invalid_data_is_detected_before_the_build(models: Path, tmp_path: Path) -> None:
    (tmp_path / "labelled.tsv").write_text("text\tlabel\n" + "good film\tpositive\n" * 50 + "bad film\tawful\n")
    spec = write_spec(tmp_path / "reviews.yaml", models, tmp_path / "labelled.tsv")
    done = tidal_build(spec, "--repository", tmp_path / "r")
    assert done.code == 2
    assert "line 52: unknown label 'awful', accepted are label names (negative, neutral, positive)" in done.stderr
    assert not [path for path in (tmp_path / "r").iterdir() if ModelEntry(path).versions()]


def test_levels_give_the_answers_of_their_source_models(
    built: Built, models: Path, texts: list[str], tmp_path: Path
) -> None:
    work = Workspace(tmp_path / "work")
    orders = (None, (2, 1, 0))
    runners = [
        LevelRunner(name, built.repository / f"reviews_{name}" / "1", order, work)
        for name, order in zip(("small", "large"), orders, strict=True)
    ]
    queries = [(text,) for text in texts]
    shares: list[float] = []
    small, large = collect(runners, queries, shares.append)
    for name, outputs in (("small", small), ("large", large)):
        found = [LABELS[number] for number in outputs.logits.argmax(axis=1).tolist()]
        assert found == answers_of(models / name, texts)
        assert (outputs.latency_ms > 0).all()
    assert large.importance is None
    assert small.importance is not None
    read = runners[0].encode(queries)
    assert [len(each) for each in small.importance] == [len(each.ids) for each in read]
    assert max(len(each.ids) for each in read) == 64
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.usefixtures("no_model_runs")
def test_answers_are_read_from_the_workspace(built: Built, texts: list[str]) -> None:
    folder = built.repository / "reviews/.build/cascade"
    runner = LevelRunner("large", built.repository / "reviews_large/1", (2, 1, 0), Workspace(folder))
    outputs = runner.run(runner.encode([(text,) for text in texts]))
    assert outputs.logits.dtype == np.float32
    assert len(outputs.logits) == len(texts)


def test_a_version_that_a_cascade_names_is_kept(tmp_path: Path) -> None:
    entry = ModelEntry(tmp_path / "reviews_small")
    for _ in range(5):
        entry.publish(entry.new_staging(), needed={1})
    assert entry.versions() == [1, 3, 4, 5]
    entry.publish(entry.new_staging())
    assert entry.versions() == [4, 5, 6]
