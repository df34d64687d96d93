"""Building a base: what is published and profiled, when it is rebuilt, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from testing.models import make_tiny_classifier
from tidal.catalog.manifests import load_published
from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.base import load_base_layers
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest, load_pets_manifest
from tidal.pets.openvino_engine.engine import open_openvino_engine
from tidal.repository.entries import ModelEntry
from tidal_builders.pets import verify
from tidal_builders.pets.build import build_pets
from tidal_builders.pets.profiling import _monotone, _profile, activation_bytes, grid_of, tasks_together
from tidal_builders.pets.report import PetsReport
from tidal_builders.pets.typical import TYPICAL_KINDS, typical_task
from tidal_builders.pets.verify import PetsVerification
from tidal_builders.specs import load_spec
from tidal_builders.timing import Timing

pytestmark = pytest.mark.slow

MAX_LENGTH = 24
Published = tuple[Path, Path, PetsReport]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("source") / "tiny", max_position=MAX_LENGTH, layers=1)


@pytest.fixture
def build(tmp_path: Path, source: Path) -> Callable[..., PetsReport]:
    """Build the tiny base into `tmp_path / "r"`; fields given replace those of its spec."""

    def run(*, force: bool = False, **fields: Any) -> PetsReport:
        content = {"kind": "pets", "name": "base", "model": str(source), "max_batch": 2, "profile_seconds": 0.1}
        path = tmp_path / "base.yaml"
        path.write_text(yaml.safe_dump(content | fields))
        spec: Any = load_spec(path)
        return build_pets(spec, tmp_path / "r", spec_file=path, force=force)

    return run


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Published:
    """The source, a version built from it, and the report; read-only."""
    folder = tmp_path_factory.mktemp("published")
    path = folder / "base.yaml"
    path.write_text(f"{{kind: pets, name: base, model: {source}, max_batch: 4, max_tokens: 32, profile_seconds: 0.1}}")
    spec: Any = load_spec(path)
    report = build_pets(spec, folder / "r", spec_file=path)
    return source, folder / "r/base/1", report


def test_the_version_is_complete_and_verified(published: Published) -> None:
    _, folder, report = published
    manifest = load_published(folder)
    assert isinstance(manifest, PetsManifest)
    manifest.check_files(folder)
    layers = load_base_layers(folder)
    assert (report.outcome, report.version, report.base) == ("published", 1, layers.digest)
    assert manifest.base == layers.digest == open_openvino_engine(folder / ENGINE_FOLDER, threads=1).description.digest
    assert (manifest.max_length, manifest.width, manifest.zeroed) == (MAX_LENGTH, 64, ())
    assert manifest.verification.max_abs_error <= 1e-4
    assert manifest.verification.samples == 10 * (1 + len(TYPICAL_KINDS))
    config = (folder.parent / "config.pbtxt").read_text()
    assert 'backend: "pets"' in config
    assert "truncate" not in config


def test_all_kinds_are_profiled_up_to_the_limits_of_the_base(published: Published) -> None:
    _, folder, report = published
    profile = load_pets_manifest(folder).profile
    assert profile.shared.lengths == (8, 16, MAX_LENGTH)
    assert [len(row) for row in profile.shared.median_ms] == [3, 2, 1]  # no more than 32 tokens
    assert set(profile.terms_ms) == set(TYPICAL_KINDS)
    tables = profile.tables()
    assert (tables.max_batch, tables.max_length) == (4, MAX_LENGTH)
    assert (np.diff(tables.terms[:, 1:9, 1:3], axis=1) >= 0).all()
    assert profile.spread_tokens is not None
    assert profile.memory_bytes.at(8, 4) == 32 * activation_bytes(
        open_openvino_engine(folder / "engines", threads=1).description
    )
    assert [(row.length, row.batch) for row in report.rows] == [(8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (24, 1)]
    assert set(report.rows[0].terms_ms) == set(TYPICAL_KINDS)


def test_a_grid_covers_the_longest_input_and_the_largest_batch() -> None:
    assert grid_of(100, 6, 300) == {
        8: (1, 2, 4, 6), 16: (1, 2, 4, 6), 32: (1, 2, 4, 6), 64: (1, 2, 4), 100: (1, 2)
    }  # fmt: skip
    assert grid_of(8, 1, 8) == {8: (1,)}
    assert grid_of(512, 64, 2048)[512] == (1, 2, 4)


def test_measured_terms_are_made_monotonic_in_length_and_batch() -> None:
    cells = {(8, 1): -1.0, (8, 2): 9.0, (16, 1): 2.0, (16, 2): 4.0}
    assert _monotone(cells) == {(8, 1): 0.0, (8, 2): 6.5, (16, 1): 2.0, (16, 2): 6.5}
    sound = {(8, 1): 1.0, (8, 2): 2.0, (16, 1): 2.5}
    assert _monotone(sound) == sound


def test_a_current_version_is_not_rebuilt_and_its_tasks_are_kept(
    build: Callable[..., PetsReport], tmp_path: Path
) -> None:
    assert build().outcome == "published"
    task = tmp_path / "r/base/tasks/t"
    task.mkdir(parents=True)
    again = build()
    assert (again.outcome, again.version, len(again.rows)) == ("current", 1, 6)
    changed = build(max_tokens=24)
    assert (changed.outcome, changed.version) == ("published", 2)
    assert changed.reasons == ("spec.max_tokens changed from 2048 to 24",)
    assert task.is_dir()


def test_an_interrupted_build_resumes(
    build: Callable[..., PetsReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tidal_builders.pets.build.measure_profile", killed)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert ModelEntry(tmp_path / "r/base").versions() == []
    report = build()
    assert (report.outcome, set(report.reused)) == ("published", {"base", "verified"})


def test_a_version_beyond_its_tolerance_is_not_published(build: Callable[..., PetsReport], tmp_path: Path) -> None:
    report = build(tolerance=1e-12)
    assert report.outcome == "missed"
    assert any("largest error of the pooled vector" in reason for reason in report.reasons)
    assert ModelEntry(tmp_path / "r/base").versions() == []


def test_reduced_precision_is_verified_on_a_thousand_labels(build: Callable[..., PetsReport], tmp_path: Path) -> None:
    try:
        report = build(precision="bf16")
    except Unsupported as error:
        pytest.skip(str(error))
    manifest = load_pets_manifest(tmp_path / "r/base/1")
    found = manifest.verification
    assert (report.outcome, manifest.precision) == ("published", "bf16")
    assert found.samples >= 1000
    assert 1e-5 < found.max_abs_error < found.tolerance == 0.1
    fewer = found.model_copy(update={"argmax_agreement": 0.998})
    missed = PetsVerification(verification=fewer, errors={}, least=0.999).misses
    assert missed == ("99.80% of the samples keep their label; required is 99.90%",)
    assert PetsVerification(verification=fewer, errors={}, least=0.998).misses == ()


def test_wrong_answers_of_the_engine_fail_the_verification(
    build: Callable[..., PetsReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidal_builders.pets.verify.merge_terms", lambda _model, _terms: None)
    report = build()
    assert report.outcome == "missed"
    assert {reason.split("'")[1] for reason in report.reasons if "pooled" in reason} == set(TYPICAL_KINDS)


def test_attention_is_published_only_where_it_equals_the_sources(
    build: Callable[..., PetsReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build(attention_received=True).outcome == "published"
    assert load_pets_manifest(tmp_path / "r/base/1").attention_received
    assert 'name: "attention_received" data_type: TYPE_FP32' in (tmp_path / "r/base/config.pbtxt").read_text()
    without = verify.attention_received
    monkeypatch.setattr(verify, "attention_received", lambda found: without(found)[::-1] + 0.1)
    missed = build(attention_received=True, force=True)
    assert missed.outcome == "missed"
    assert "of its largest value" in missed.reasons[0]


def test_a_missing_pooler_is_replaced_by_zeros_and_reported(build: Callable[..., PetsReport], tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    original = make_tiny_classifier(tmp_path / "original", max_position=MAX_LENGTH, layers=1)
    AutoModel.from_pretrained(original, add_pooling_layer=False).save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(original).save_pretrained(tmp_path / "bare")
    first, again = (build(model=str(tmp_path / "bare"), force=True) for _ in range(2))
    assert first.zeroed == ("pooler.dense.bias", "pooler.dense.weight")
    assert first.base == again.base
    assert (again.version, again.reasons) == (2, ("forced",))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "./nothing"}, "there is no folder"),
        ({"samples": "nothing.txt"}, "there is no file"),
        ({"max_length": 25}, "25 tokens exceed the model's longest input of 24"),
        ({"engine": "torch", "precision": "bf16"}, "bf16 requires engine openvino, got torch"),
        ({"engine": "torch", "attention_received": True}, "attention requires engine openvino, got torch"),
    ],
)
def test_invalid_specs_are_refused(build: Callable[..., PetsReport], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build(**fields)


def test_pickled_weights_are_refused(build: Callable[..., PetsReport], source: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(source, pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(InvalidArgument, match="has no weights as safetensors"):
        build(model=str(pickled))


def test_typical_tasks_can_be_stored_as_their_kinds(published: Published) -> None:
    from tidal.pets.kinds.kind import find_kind
    from tidal.pets.kinds.stored import write_terms
    from tidal.tasks.stored import Storage

    layers = load_base_layers(published[1])
    for kind in TYPICAL_KINDS:
        assert write_terms(find_kind(kind), typical_task(kind, layers), layers, Storage())


def test_the_cost_of_terms_is_derived_from_batches_of_several_tasks() -> None:
    def alpha(length: int, n: int) -> float:
        return 1.0 + 0.1 * length * n

    def beta(length: int, n: int) -> float:
        return 0.5 + 0.01 * length * n

    grid = {8: (1, 2, 4, 8, 16), 16: (1, 2, 4, 8)}
    timings = {}
    for length, numbers in grid.items():
        for n in numbers:
            tasks = tasks_together(numbers, n)
            assert tasks * n == min(8 * n, numbers[-1])
            timings["base", length, n] = Timing(alpha(length, n), alpha(length, n), 1)
            took = alpha(length, tasks * n) + tasks * beta(length, n)
            timings["lora", length, n] = Timing(took, took, 1)
    memory = {(length, n): 1.0 for length, numbers in grid.items() for n in numbers}
    profile = _profile(timings, grid, ["lora"], memory, 1, packed=False)
    for length, numbers in grid.items():
        for n in numbers:
            assert profile.terms_ms["lora"].at(length, n) == pytest.approx(beta(length, n))
            assert profile.shared.latency_ms(length, n) == pytest.approx(alpha(length, n))
