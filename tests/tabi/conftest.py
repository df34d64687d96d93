"""Cascades of tiny classifiers with random weights, assembled by hand, for a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.cascades import LABELS, LARGE, MAX_LENGTH, SMALL, Cascades
from testing.models import make_tiny_classifier
from tidal_builders.arlo.build import build_arlo
from tidal_builders.specs import parse_spec


@pytest.fixture(scope="session")
def cascades(tmp_path_factory: pytest.TempPathFactory) -> Cascades:
    folder = tmp_path_factory.mktemp("tabi")
    for name, layers, seed in ((SMALL, 1, 0), (LARGE, 2, 1)):
        source = make_tiny_classifier(
            folder / f"source-{name}", layers=layers, labels=LABELS, max_position=MAX_LENGTH, seed=seed
        )
        spec = {"kind": "arlo", "name": name, "model": str(source), "lengths": [16, MAX_LENGTH], "max_batch": 8}
        spec["outputs"] = ["logits", "attention_received"]
        build_arlo(parse_spec(spec, "test"), folder / "repository", spec_file=Path(f"{name}.yaml"))
    return Cascades(folder / "repository")
