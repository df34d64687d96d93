"""New versions of every model published and loaded under load."""

from __future__ import annotations

import shutil
from pathlib import Path

from reliability.rows import MIN_REQUESTS, Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.cascades import SMALL
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.change import reload, serving_versions
from tidal_builders.arlo.runtimes import publish_with_runtimes


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Publish a new version of each model and reload it."""
    names = [SMALL] if target.quick else [model.name for model in target.models]
    folder, control, wrong = target.repository.folder, target.control, list[str]()
    # Triton drops the counters of an unloaded version.
    with target.load(uncounted={"engine"}) as load:
        load.wait_for(20)
        for name in names:
            version = publish_again(folder, name)
            reload(control, folder, name)
            if version not in (serving := serving_versions(control, name)):
                wrong.append(f"{name}: version {version} was loaded and {serving} serve")
        load.wait_for(20 if target.quick else MIN_REQUESTS - len(load.sent))
    failures = [*load.failures(), *wrong]
    return [none_failed("publish and reload of versions", len(load.sent), len(names), failures, quick=target.quick)]


def publish_again(repository: Path, name: str) -> int:
    """Publish the newest version's content as a new version; for a partitioned model its runtimes' too.

    Args:
        repository: Model repository.
        name: Name of the model.
    """
    entry = ModelEntry(repository / name)
    latest = entry.latest()
    assert latest is not None
    staging = entry.new_staging()
    shutil.copytree(latest, staging, dirs_exist_ok=True)
    if name != "split":
        return entry.publish(staging)
    return publish_with_runtimes(entry, load_arlo_manifest(latest), staging, lambda *_: None)
