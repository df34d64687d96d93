"""Building a vision transformer: what is published and profiled, when it is rebuilt, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing import tiny_vision as tiny
from testing.vits import tiny_vit
from tidal.catalog.manifests import load_published
from tidal.errors import InvalidArgument
from tidal.otas.manifest import OtasManifest
from tidal.otas.runner import open_runner
from tidal.repository.entries import ModelEntry
from tidal_builders.otas.engines import batch_sizes, graphs
from tidal_builders.otas.profiling import _monotonic
from tidal_builders.otas.report import OtasReport
from tidal_builders.otas.transformer import load_transformer
from tidal_builders.otas.verify import _batches
from tidal_builders.otas.vit import read_vit

pytestmark = pytest.mark.slow

Built = tuple[Path, OtasReport]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A repository and the build's report; read-only."""
    folder = tmp_path_factory.mktemp("built")
    return folder / "r", tiny.build(folder / "r", tiny.write_source(folder / "source"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_source(tmp_path_factory.mktemp("plain") / "source", tiny_vit(layers=1, size=8))


def test_the_version_is_complete_and_verified(built: Built) -> None:
    repository, report = built
    folder = repository / "vision/1"
    manifest = load_published(folder)
    assert isinstance(manifest, OtasManifest)
    manifest.check_files(folder)
    assert (report.outcome, report.version, report.base) == ("published", 1, manifest.base)
    assert manifest.base == read_vit(folder).digest == tiny_vit().digest
    assert (manifest.gammas, manifest.tokens, manifest.width, manifest.layers) == ((-4, 0, 1, 2), 17, 8, 2)
    assert not manifest.accumulate
    for found in manifest.verification:
        assert found.max_abs_error <= 1e-4
        assert (found.samples, found.undecided) == (8, 0)
    assert {trial.gamma for trial in manifest.trials} == {-4, 0}
    assert [trial.verdict for trial in manifest.trials].count("chosen") == 2
    assert manifest.engines_of(1) == manifest.engines_of(2)
    config = (folder.parent / "config.pbtxt").read_text()
    assert 'backend: "otas"' in config
    assert "dims: [ 3, 16, 16 ]" in config


def test_every_gamma_and_size_is_profiled(built: Built) -> None:
    repository, report = built
    profile = tiny.manifest_of(repository).profile
    assert (profile.gammas, profile.batches) == ((-4, 0, 1, 2), (1, 2, 4))
    assert [sorted(row) for row in profile.median_ms] == [list(row) for row in profile.median_ms]
    assert [row.gamma for row in report.rows] == [-4, 0, 1, 2]
    assert list(report.rows[0].batch_ms) == [1, 2, 4]


def test_engines_equal_torch_at_every_batch_size(built: Built) -> None:
    manifest = tiny.manifest_of(built[0])
    runner = open_runner(manifest, built[0] / "vision/1")
    runner.warm_up()
    model = load_transformer(tiny_vit())
    draw = np.random.default_rng(3)
    for gamma in manifest.gammas:
        pixels = draw.standard_normal((4, *manifest.image.shape)).astype(np.float32)
        shape = manifest.prompt_shape(gamma)
        prompts = None if shape is None else draw.standard_normal((4, *shape)).astype(np.float32)
        with torch.inference_mode():
            expected = model(gamma, torch.from_numpy(pixels), None if prompts is None else torch.from_numpy(prompts))
        for images in (1, 3, 4):
            features = runner.run(gamma, pixels[:images], None if prompts is None else prompts[:images])
            np.testing.assert_allclose(features, expected[:images].numpy(), rtol=0, atol=1e-4)


def test_a_current_version_is_not_rebuilt_and_its_tasks_are_kept(source: Path, tmp_path: Path) -> None:
    first = tiny.build(tmp_path / "r", source, gammas=[0], static_batches=[])
    tiny.add_random_task(tmp_path / "r", "kept", ["a", "b"])
    again = tiny.build(tmp_path / "r", source, gammas=[0], static_batches=[])
    assert (first.outcome, again.outcome, again.version, len(again.rows)) == ("published", "current", 1, 1)
    changed = tiny.build(tmp_path / "r", source, gammas=[0], static_batches=[], max_batch=2)
    assert (changed.outcome, changed.version) == ("published", 2)
    assert changed.reasons == ("spec.max_batch changed from 4 to 2",)
    assert (tmp_path / "r/vision/tasks/kept/task.json").is_file()


def test_an_interrupted_build_resumes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    fields: dict[str, Any] = {"gammas": [0, 1], "prompts": "accumulated"}
    with monkeypatch.context() as patch:
        patch.setattr("tidal_builders.otas.build.measure_profile", killed)
        with pytest.raises(KeyboardInterrupt):
            tiny.build(tmp_path / "r", source, **fields)
    assert ModelEntry(tmp_path / "r/vision").versions() == []
    report = tiny.build(tmp_path / "r", source, **fields)
    assert (report.outcome, set(report.reused)) == ("published", {"source", "plain", "prompts", "chosen", "verified"})
    assert tiny.manifest_of(tmp_path / "r").accumulate


def test_a_version_beyond_its_tolerance_is_not_published(source: Path, tmp_path: Path) -> None:
    report = tiny.build(tmp_path / "r", source, gammas=[0], static_batches=[], tolerance=1e-12)
    assert report.outcome == "missed"
    assert any("γ 0: largest error of the features" in reason for reason in report.reasons)
    assert ModelEntry(tmp_path / "r/vision").versions() == []


@pytest.fixture
def wrong_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Export graphs with other weights than the model's."""
    from tidal_builders.otas import engines

    convert = engines.convert

    def other(model: Any, *arguments: Any) -> None:
        convert(load_transformer(tiny_vit(seed=9, layers=1, size=8)), *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engines, "convert", other)
        yield


@pytest.mark.usefixtures("wrong_engines")
def test_engines_with_other_weights_fail_the_verification(source: Path, tmp_path: Path) -> None:
    report = tiny.build(tmp_path / "r", source, gammas=[0, 1], static_batches=[])
    assert report.outcome == "missed"
    assert [reason[:4] for reason in report.reasons] == ["γ 0:", "γ 1:"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "./nothing"}, "there is no folder"),
        ({"gammas": [-2, 2]}, "0, the unchanged model, is missing"),
        ({"gammas": [-9, -7, 0]}, "would not merge more"),
        ({"static_batches": [2, 4]}, "begin with 1"),
        ({"tensorrt": {}}, "plan options require engine tensorrt, got openvino"),
        ({"device": "gpu"}, "engine openvino runs on cpu, not on gpu"),
    ],
)
def test_invalid_specs_are_refused(tmp_path: Path, source: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        tiny.build(tmp_path / "r", source, **fields)


def test_verification_runs_every_row_at_every_batch_size() -> None:
    found = list(_batches(8, {1, 3, 16}))
    assert [len(rows) for rows in found] == [1] * 8 + [3] * 3 + [16]
    for size in (1, 3, 16):
        assert {int(row) for rows in found if len(rows) == size for row in rows} == set(range(8))


def test_a_torch_engine_is_built_and_verified(source: Path, tmp_path: Path) -> None:
    report = tiny.build(tmp_path / "r", source, gammas=[0, 2], static_batches=[], engine="torch", device="cpu")
    manifest = tiny.manifest_of(tmp_path / "r")
    assert (report.outcome, manifest.engine, manifest.device.kind) == ("published", "torch", "cpu")
    features = open_runner(manifest, tmp_path / "r/vision/1").run(0, np.zeros((3, 3, 8, 8), np.float32))
    assert features.shape == (3, 8)


def test_prompts_share_a_graph_except_on_tensorrt() -> None:
    assert graphs((-4, 0, 2, 4), "openvino") == {(-4,): "merge4", (0,): "plain", (2, 4): "prompts"}
    assert list(graphs((-4, 0, 2, 4), "tensorrt")) == [(-4,), (0,), (2,), (4,)]
    assert list(graphs((0,), "torch")) == [(0,)]


def test_profiled_sizes_and_monotonic_latencies() -> None:
    assert batch_sizes(6) == (1, 2, 4, 6)
    assert batch_sizes(1) == (1,)
    assert _monotonic([3.0, 2.0, 5.0, 4.0]) == (2.0, 2.0, 4.0, 4.0)
