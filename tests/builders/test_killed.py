"""A builder killed at any point leaves only complete versions, and finished stages that the next build reuses."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.building import BuildProcess
from tidal import device
from tidal.arlo.manifest import load_arlo_manifest
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.build import build_arlo
from tidal_builders.specs import load_spec
from tidal_builders.workspace import build_lock

pytestmark = pytest.mark.slow

WriteSpec = Callable[..., Path]


def _only_complete_versions(repository: Path) -> list[int]:
    entry = ModelEntry(repository / "tiny")
    for version in entry.versions():
        load_arlo_manifest(entry.version_dir(version)).check(entry.version_dir(version), device.cpu())
    return entry.versions()


def test_killed_at_random_points(write_spec: WriteSpec, tmp_path: Path) -> None:
    repository, spec = tmp_path / "r", write_spec()
    staging = repository / "tiny/.staging-1"
    staging.mkdir(parents=True)
    (staging / "manifest.json").write_text("{")
    seed = int.from_bytes(os.urandom(4), "big")
    draw = random.Random(seed)
    # In the middle of a stage, before it has written anything.
    assert BuildProcess(spec, repository, kill_at="compile for openvino, fp32").wait() == -signal.SIGKILL
    for _ in range(2):
        process = BuildProcess(spec, repository)
        process.wait_started()
        time.sleep(draw.uniform(0, 0.8))
        process.kill()
        _only_complete_versions(repository)
    report = build_arlo(load_spec(spec), repository, spec_file=spec)
    assert report.outcome in ("published", "current"), f"seed {seed}"
    assert _only_complete_versions(repository), f"seed {seed}"
    leftovers = [path.name for path in (repository / "tiny").glob(".staging-*")]
    assert not leftovers, f"seed {seed}"


class _Stop(BaseException):
    """Ends a build in this process."""


def test_finished_stages_are_reused(write_spec: WriteSpec, tmp_path: Path) -> None:
    repository, spec = tmp_path / "r", write_spec()
    assert BuildProcess(spec, repository, kill_at="verify").wait() == -signal.SIGKILL
    assert _only_complete_versions(repository) == []
    stages: list[str] = []

    def stop(stage: str, _share: float) -> None:
        stages.append(stage)
        if stage == "publish":
            raise _Stop

    with pytest.raises(_Stop):
        build_arlo(load_spec(spec), repository, spec_file=spec, progress=stop)
    assert "profile" in stages
    assert "load the source model" not in stages
    assert not [stage for stage in stages if stage.startswith("compile")]
    assert _only_complete_versions(repository) == []
    report = build_arlo(load_spec(spec), repository, spec_file=spec)
    assert report.outcome == "published"
    assert set(report.reused) >= {
        "reference",
        "engine-fp32",
        "precision",
        "lengths",
        "form",
        "verified",
        "profiles",
    }


def test_builds_of_a_model_wait_for_each_other(write_spec: WriteSpec, tmp_path: Path) -> None:
    """Two concurrent builds publish one version: the second waits for the first and finds its version current."""
    repository, spec = tmp_path / "r", write_spec()
    both = [BuildProcess(spec, repository) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert _only_complete_versions(repository) == [1]


def test_a_waiting_build_reports_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    script = (
        "import sys, time; from pathlib import Path; from tidal_builders.workspace import build_lock\n"
        "with build_lock(Path(sys.argv[1]), print): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        messages: list[str] = []

        def waiting(message: str) -> None:
            messages.append(message)
            holder.kill()  # the kernel frees the lock of a process that is killed

        with build_lock(folder, waiting):
            pass
        assert messages == [f"another build of m is running (process {holder.pid})"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
