"""New versions of every model published and loaded under load."""

from __future__ import annotations

import shutil
from pathlib import Path

from reliability.bench import Bench
from reliability.models import SMALL
from reliability.rows import LEAST_REQUESTS, Row, none_failed
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.change import reload, serving_versions
from tidal_builders.arlo.runtimes import publish_with_runtimes


def run(bench: Bench) -> list[Row]:
    """Publish a version of each model and reload it."""
    names = [SMALL] if bench.quick else [model.name for model in bench.models]
    folder, control, wrong = bench.repository.folder, bench.control, list[str]()
    # Triton forgets what it counted of a version that has left.
    with bench.load(uncounted={"engine"}) as load:
        load.goes_on(20)
        for name in names:
            version = publish_again(folder, name)
            reload(control, folder, name)
            if version not in (serving := serving_versions(control, name)):
                wrong.append(f"{name}: version {version} was loaded and {serving} serve")
        load.goes_on(20 if bench.quick else LEAST_REQUESTS - len(load.sent))
    failures = [*load.failures(), *wrong]
    return [none_failed("publish and reload of versions", len(load.sent), len(names), failures, quick=bench.quick)]


def publish_again(repository: Path, name: str) -> int:
    """The newest version's content as a new version; of a partitioned model also its runtimes'."""
    entry = ModelEntry(repository / name)
    latest = entry.latest()
    assert latest is not None
    staging = entry.new_staging()
    shutil.copytree(latest, staging, dirs_exist_ok=True)
    if name != "split":
        return entry.publish(staging)
    return publish_with_runtimes(entry, load_arlo_manifest(latest), staging, lambda *_: None)
