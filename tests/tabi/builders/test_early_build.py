"""A build with an early router, from the spec to the published version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tabi.builders.command import tidal_build
from tests.tabi.builders.conftest import Built, omit_plots, steady_latencies, write_spec
from tidal.tabi.early import load_early_routers
from tidal.tabi.manifest import load_tabi_manifest

pytestmark = pytest.mark.slow


def test_a_build_publishes_the_routers_of_its_candidates(models: Path, labelled: Path, tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "reviews.yaml", models, labelled, early_router=True)
    with steady_latencies(), pytest.MonkeyPatch.context() as patch:
        omit_plots(patch)
        done = tidal_build(spec, "--repository", tmp_path / "repository")
        assert done.code == 0, done.stderr
        again = tidal_build(spec, "--repository", tmp_path / "repository")
    assert again.code == 0, again.stderr
    version = tmp_path / "repository" / "reviews" / "1"
    assert not (version.parent / "2").exists()
    manifest = load_tabi_manifest(version)
    manifest.check_files(version)
    early = [each for each in manifest.candidates if each.early is not None]
    assert early
    assert manifest.levels[0].name == "small"
    (info,) = manifest.early_routers
    assert (info.level, info.file) == (0, "early_routers/small.npz")
    assert info.file in [each.path for each in manifest.files]
    routers = load_early_routers(manifest, version)
    assert 0 <= routers[0].difficulty([b"good film"]) <= 1


def test_regressions_have_no_early_router(rated: Built, tmp_path: Path) -> None:
    spec = tmp_path / "reviews.yaml"
    spec.write_text(rated.spec.read_text() + "early_router: true\n")
    done = tidal_build(spec, "--repository", tmp_path / "repository")
    assert done.code != 0
    assert "field 'early_router'" in done.stderr
