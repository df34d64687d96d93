"""Builders that are killed, or find the disk full, while a server serves the model that they build."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from reliability.rows import MIN_REQUESTS, Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.waiting import until
from tidal import device
from tidal.errors import TidalError
from tidal.flover.manifest import load_flover_manifest
from tidal.repository.entries import ModelEntry
from tidal.server.change import reload, serving_versions
from tidal_builders.commands.build import FAILED

_MODEL = "writer"
_KILLS, _QUICK_KILLS = 4, 1
# Maximum file sizes in bytes: too small for a manifest, for a tokenizer, for the weights.
_LIMITS, _QUICK_LIMITS = (1_000, 4_000, 16_000), (4_000,)
_BUILD_S = 300
# Kills during publication, and the maximum delay after a version was published, seconds.
_PUBLISH_KILLS, _QUICK_PUBLISH_KILLS, _PUBLISH_S = 20, 3, 0.05
# Repeats the end of every build.
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
# Python ignores the signal of the limit, so that writing fails as on a full disk.
_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Kill builders at random times and during publication, let others run out of disk, then let one succeed."""
    draw = random.Random(7)
    wrong = list[str]()
    kills, limits = (_QUICK_KILLS, _QUICK_LIMITS) if target.quick else (_KILLS, _LIMITS)
    folder, control = target.repository.folder, target.control
    entry = ModelEntry(folder / _MODEL)

    def check(when: str) -> None:
        wrong.extend(f"{when}: {each}" for each in _incomplete(entry))
        try:
            reload(control, folder, _MODEL)
        except TidalError as error:
            wrong.append(f"{when}: {error}")
        if serving_versions(control, _MODEL) != entry.versions()[-1:]:
            wrong.append(f"{when}: {serving_versions(control, _MODEL)} of {entry.versions()} serve")

    with target.load() as load:
        for _ in range(kills):
            before = entry.versions()
            builder = _build(target)
            time.sleep(draw.uniform(0.5, 6))
            builder.send_signal(signal.SIGKILL)
            builder.wait()
            check(f"a builder killed that found {before}")
        publishes = _QUICK_PUBLISH_KILLS if target.quick else _PUBLISH_KILLS
        for _ in range(publishes):
            before = entry.versions()
            if not publish_until_killed(entry, draw.uniform(0, _PUBLISH_S)):
                wrong.append(f"nothing was published after {before}")
            wrong.extend(f"killed while it published: {each}" for each in _incomplete(entry))
        check("builders killed while they published")
        for limit in limits:
            before = entry.versions()
            builder = _build(target, limit)
            output = builder.communicate(timeout=_BUILD_S)[1]
            if builder.returncode != FAILED or "the disk is full" not in output:
                wrong.append(f"a disk with room for {limit} bytes: {builder.returncode}, {output.splitlines()[-1:]}")
            if entry.versions() != before:
                wrong.append(f"a disk with room for {limit} bytes: published {entry.versions()}")
            check(f"a disk with room for {limit} bytes")
        before = entry.versions()
        builder = _build(target)
        output = builder.communicate(timeout=_BUILD_S)[1]
        if builder.returncode != 0 or entry.versions()[-1:] <= before[-1:]:
            wrong.append(f"the build after them: {output.splitlines()[-1:]}")
        check("the build after them")
        load.wait_for(20 if target.quick else MIN_REQUESTS - len(load.sent))
    changes = kills + publishes + len(limits) + 1
    what = "builders killed, and out of disk, beside the server"
    return [none_failed(what, len(load.sent), changes, [*wrong, *load.failures()], quick=target.quick)]


def publish_until_killed(entry: ModelEntry, seconds: float) -> bool:
    """Kill a process that publishes versions repeatedly; return whether it published one.

    Args:
        entry: Repository entry of the model.
        seconds: Delay of the kill after its first version.
    """
    before = entry.versions()
    builder = subprocess.Popen([sys.executable, "-c", _PUBLISHING, entry.folder])
    try:
        published = until(lambda: entry.versions() != before)
        time.sleep(seconds)
    finally:
        builder.kill()
        builder.wait()
    return published


def _build(target: ServerUnderTest, limit: int | None = None) -> subprocess.Popen[str]:
    """Start `tidal build` of the model into the served repository, with a limit of file sizes in bytes."""
    build = ["-m", "tidal_client.main", "build", str(target.repository.writer_spec), "--force"]
    command = [sys.executable, *build, "--repository", str(target.repository.folder)]
    if limit is not None:
        command = [sys.executable, "-c", _LIMITED, str(limit), *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _incomplete(entry: ModelEntry) -> list[str]:
    """Return the published versions that are incomplete."""
    found = []
    for version in entry.versions():
        folder: Path = entry.version_dir(version)
        try:
            load_flover_manifest(folder).check(folder, device.cpu())
        except TidalError as error:
            found.append(f"version {version}: {error}")
    return found
