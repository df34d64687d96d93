"""Builders that are killed, or find the disk full, beside a server of what they build."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from reliability.bench import Bench
from reliability.rows import LEAST_REQUESTS, Row, none_failed
from testing.waiting import until
from tidal import device
from tidal.errors import TidalError
from tidal.flover.manifest import load_flover_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.change import reload, serving_versions
from tidal_builders.commands.build import FAILED

_MODEL = "writer"
_KILLS, _QUICK_KILLS = 4, 1
# Bytes that a file may have: too few for a manifest, for a tokenizer, for the weights.
_LIMITS, _QUICK_LIMITS = (1_000, 4_000, 16_000), (4_000,)
_BUILD_S = 300
# Kills in the publish itself, so many seconds at most after a version came.
_PUBLISH_KILLS, _QUICK_PUBLISH_KILLS, _PUBLISH_S = 20, 3, 0.05
# What the end of every build does, over and over.
_PUBLISHING = """
import shutil, sys
from pathlib import Path
from tidal.repository.entries import ModelEntry
entry = ModelEntry(Path(sys.argv[1]))
while True:
    staging = entry.new_staging()
    shutil.copytree(entry.latest(), staging, dirs_exist_ok=True)
    entry.publish(staging)
"""
# Python ignores the signal that comes with it, so that writing fails as it does on a full disk.
_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def run(bench: Bench) -> list[Row]:
    """Kill builders at random moments and in the publish, fill the disk of others, then let one go through."""
    draw = random.Random(7)
    wrong = list[str]()
    kills, limits = (_QUICK_KILLS, _QUICK_LIMITS) if bench.quick else (_KILLS, _LIMITS)
    folder, control = bench.repository.folder, bench.control
    entry = ModelEntry(folder / _MODEL)

    def look(when: str) -> None:
        wrong.extend(f"{when}: {each}" for each in _incomplete(entry))
        try:
            reload(control, folder, _MODEL)
        except TidalError as error:
            wrong.append(f"{when}: {error}")
        if serving_versions(control, _MODEL) != entry.versions()[-1:]:
            wrong.append(f"{when}: {serving_versions(control, _MODEL)} of {entry.versions()} serve")

    with bench.load() as load:
        for _ in range(kills):
            before = entry.versions()
            builder = _build(bench)
            time.sleep(draw.uniform(0.5, 6))
            builder.send_signal(signal.SIGKILL)
            builder.wait()
            look(f"a builder killed that found {before}")
        publishes = _QUICK_PUBLISH_KILLS if bench.quick else _PUBLISH_KILLS
        for _ in range(publishes):
            before = entry.versions()
            if not publish_until_killed(entry, draw.uniform(0, _PUBLISH_S)):
                wrong.append(f"nothing was published after {before}")
            wrong.extend(f"killed while it published: {each}" for each in _incomplete(entry))
        look("builders killed while they published")
        for limit in limits:
            before = entry.versions()
            builder = _build(bench, limit)
            said = builder.communicate(timeout=_BUILD_S)[1]
            if builder.returncode != FAILED or "the disk is full" not in said:
                wrong.append(f"a disk with room for {limit} bytes: {builder.returncode}, {said.splitlines()[-1:]}")
            if entry.versions() != before:
                wrong.append(f"a disk with room for {limit} bytes: published {entry.versions()}")
            look(f"a disk with room for {limit} bytes")
        before = entry.versions()
        builder = _build(bench)
        said = builder.communicate(timeout=_BUILD_S)[1]
        if builder.returncode != 0 or entry.versions()[-1:] <= before[-1:]:
            wrong.append(f"the build after them: {said.splitlines()[-1:]}")
        look("the build after them")
        load.goes_on(20 if bench.quick else LEAST_REQUESTS - len(load.sent))
    changes = kills + publishes + len(limits) + 1
    what = "builders killed, and out of disk, beside the server"
    return [none_failed(what, len(load.sent), changes, [*wrong, *load.failures()], quick=bench.quick)]


def publish_until_killed(entry: ModelEntry, seconds: float) -> bool:
    """Kill a process that publishes one version after the other, so many seconds after its first; whether one came."""
    before = entry.versions()
    builder = subprocess.Popen([sys.executable, "-c", _PUBLISHING, entry.folder])
    try:
        published = until(lambda: entry.versions() != before)
        time.sleep(seconds)
    finally:
        builder.kill()
        builder.wait()
    return published


def _build(bench: Bench, limit: int | None = None) -> subprocess.Popen[str]:
    """`tidal build` of the model into the served repository, whose files may have so many bytes."""
    build = ["-m", "tidal_client.main", "build", str(bench.repository.writer_spec), "--force"]
    command = [sys.executable, *build, "--repository", str(bench.repository.folder)]
    if limit is not None:
        command = [sys.executable, "-c", _LIMITED, str(limit), *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _incomplete(entry: ModelEntry) -> list[str]:
    """Versions that are there and not whole."""
    found = []
    for version in entry.versions():
        folder: Path = entry.version_dir(version)
        try:
            load_flover_manifest(folder).check(folder, device.cpu())
        except TidalError as error:
            found.append(f"version {version}: {error}")
    return found
