from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.building import short_timing
from testing.models import make_tiny_classifier
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.report import ArloReport
from tidal_builders.specs import load_spec

Published = tuple[Path, Path, ArloReport]


@pytest.fixture(scope="module", autouse=True)
def _short_timing() -> Iterator[None]:
    with short_timing():
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_classifier(tmp_path_factory.mktemp("source") / "tiny", max_position=64)


@pytest.fixture
def write_spec(tmp_path: Path, tiny: Path) -> Callable[..., Path]:
    """Write a spec of the tiny model that builds fast; fields given replace its own."""

    def write(**fields: Any) -> Path:
        content = {"kind": "arlo", "name": "tiny", "model": str(tiny), "lengths": [16, 64], "form": "dynamic"}
        content |= {"max_batch": 4, **fields}
        path = tmp_path / f"{content['name']}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Published:
    """A spec, a repository with the model it describes, and the report of that build. Read-only: see `copied`."""
    folder = tmp_path_factory.mktemp("published")
    shutil.copytree(tiny, folder / "source")
    spec = folder / "tiny.yaml"
    spec.write_text(
        "kind: arlo\nname: tiny\nmodel: ./source\nlengths: [16, 64]\nmax_batch: 4\ntruncate: true\n"
        "outputs: [logits, attention_received]\n"
    )
    with short_timing():
        report = build_arlo(load_spec(spec), folder / "repository", spec_file=spec)
    return spec, folder / "repository", report


@pytest.fixture
def copied(published: Published, tmp_path: Path) -> tuple[Path, Path]:
    """Spec and repository of `published`, and beside them its source, as copies that the test may change."""
    folder = tmp_path / "copied"
    shutil.copytree(published[0].parent, folder)
    return folder / "tiny.yaml", folder / "repository"
