from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.classifiers import build_classifier
from testing.models import make_tiny_classifier
from testing.serving import Served, serving

LENGTHS = (16, 32, 64)
# Milliseconds of a query padded to each length, instead of this machine's profile: decisions depend on them.
_LATENCIES_MS = {16: 2.0, 32: 4.0, 64: 8.0}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the partitioned model `tiny`, one instance of each runtime; not to be served itself."""
    folder = tmp_path_factory.mktemp("built")
    source = make_tiny_classifier(folder / "source", max_position=LENGTHS[-1])
    fields = {"placement": "partitioned", "slo_ms": 400, "max_batch": 1}
    build_classifier(folder / "models", source, lengths=list(LENGTHS), **fields)
    path = folder / "models" / "tiny" / "1" / "manifest.json"
    manifest = json.loads(path.read_text())
    profile = manifest["profile"]
    for name in ("median_ms", "p95_ms"):
        profile[name] = [[next(ms for n, ms in _LATENCIES_MS.items() if n >= at)] for at in profile["lengths"]]
    profile["batches"] = [1]
    path.write_text(json.dumps(manifest))
    return folder / "models"


@pytest.fixture(scope="session")
def repository_in(built: Path) -> Callable[[Path], Path]:
    """Return a function that copies the repository to a folder, without an allocation."""

    def copy(folder: Path) -> Path:
        return Path(shutil.copytree(built, folder / "models"))

    return copy


@pytest.fixture(scope="module")
def served(repository_in: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`tidal serve` with the model `tiny`."""
    folder = tmp_path_factory.mktemp("served")
    with serving(repository_in(folder), folder / "run") as running:
        yield running
