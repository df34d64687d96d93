from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.models import make_tiny_classifier
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.report import ArloReport
from tidal_builders.specs import load_spec


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


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> tuple[Path, Path, ArloReport]:
    """A spec, a repository with the model it describes, and the report of that build. Read-only."""
    folder = tmp_path_factory.mktemp("published")
    spec = folder / "tiny.yaml"
    spec.write_text(
        f"kind: arlo\nname: tiny\nmodel: {tiny}\nlengths: [16, 64]\nmax_batch: 4\n"
        "outputs: [logits, attention_received]\n"
    )
    report = build_arlo(load_spec(spec), folder / "repository", spec_file=spec)
    return spec, folder / "repository", report
