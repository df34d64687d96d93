"""Generations of many tasks against a model each, on a tiny decoder: what is built and served, and asked."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from benchmarks.compositions import decoder_prepare, decoder_tasks
from benchmarks.compositions.decoder_prepare import (
    BASE,
    TASK,
    BuiltArtefacts,
    merged,
    prepare,
    threads_tried,
    write_own,
    write_shared,
)
from benchmarks.compositions.sharing import SharingSystem
from benchmarks.flover.source import TINY
from testing.serving import tidal_in_process
from tidal.flover.manifest import load_flover_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.child import tidal_serve
from tidal.tasks.folder import scan, tasks_folder
from tidal_client import AsyncClient

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> BuiltArtefacts:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        # In this process, which has imported what a build takes seconds to import.
        patch.setattr(decoder_prepare, "_tidal", lambda *words: tidal_in_process(*words, environment=dict(os.environ)))
        return prepare(TINY, slots=4, profile_seconds=0.01)


def test_systems_have_the_same_tasks(artefacts: BuiltArtefacts, tmp_path: Path) -> None:
    write_shared(tmp_path / "shared", artefacts, 2)
    assert sorted(scan(tasks_folder(tmp_path / "shared" / BASE))) == [f"{TASK}_0", f"{TASK}_1"]
    for threads in threads_tried():
        write_own(tmp_path / str(threads), artefacts, 2, threads)
        versions = [ModelEntry(tmp_path / str(threads) / f"{TASK}_{number}").latest() for number in range(2)]
        manifests = [load_flover_manifest(version) for version in versions if version is not None]
        assert [manifest.threads for manifest in manifests] == [threads, threads]
    assert {path.name for path in artefacts.repository.iterdir()} == {BASE, *map(merged, threads_tried())}


def test_a_task_and_its_model_generate_the_same(artefacts: BuiltArtefacts, tmp_path: Path) -> None:
    """In bfloat16 they may part where two tokens are all but equally likely, so most first tokens have to agree."""
    systems = decoder_tasks._systems(artefacts, 2)
    draw = random.Random(1)
    queries = [([draw.randrange(400) for _ in range(16)], 12) for _ in range(8)]

    async def send(url: str, system: SharingSystem, name: str) -> list[list[int]]:
        async with AsyncClient(url) as client:
            return await asyncio.gather(*(system.workload.send(client, name, each, "id") for each in queries))

    found = []
    for folder, name in (("own", decoder_tasks.own(threads_tried()[0])), ("shared", decoder_tasks.SHARED)):
        system = systems[name]
        system.write(tmp_path / folder)
        with tidal_serve(tmp_path / folder, "--exit-timeout", "3") as server:
            found.append([asyncio.run(send(server.grpc, system, each)) for each in system.targets])
            if folder == "shared":
                base = asyncio.run(send(server.grpc, systems[decoder_tasks.own(threads_tried()[0])], BASE))
    own, shared = found
    assert own[0] == own[1]
    agree = sum(one[0] == other[0] for one, other in zip(own[0], shared[0], strict=True))
    assert agree >= 6
    assert sum(one[0] == other[0] for one, other in zip(base, shared[0], strict=True)) < agree
