"""`tidal build` as users and pipelines call it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tabi.builders.command import tidal_build as build_here
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.report import ArloReport

pytestmark = pytest.mark.slow

WriteSpec = Callable[..., Path]


def tidal_build(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tidal_client.main import main; sys.argv[0] = 'tidal'; main()"
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, "build", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_build_check_change_and_rebuild(write_spec: WriteSpec, tmp_path: Path) -> None:
    repository = tmp_path / "r"
    spec = write_spec()

    stale = build_here(spec, "--repository", repository, "--check")
    assert stale.code == 1
    assert "tiny: stale: no version is published" in stale.stdout
    assert not repository.exists()

    dry = build_here(spec, "--repository", repository, "--dry-run")
    assert dry.code == 0
    assert "tiny: stale: " in dry.stdout
    assert not repository.exists()

    built = tidal_build(spec, "--repository", repository)
    assert built.returncode == 0, built.stderr
    for word in ("length", "batch", "median ms", "p95 ms", "size MB", "max error", "verdict", "version 1 published"):
        assert word in built.stdout
    assert "profile" in built.stderr

    current = build_here(spec, "--repository", repository)
    assert current.code == 0
    assert current.stdout == "tiny: version 1 is current\n"
    assert current.stderr == ""
    assert build_here(spec, "--repository", repository, "--check").code == 0

    write_spec(max_batch=2)
    changed = build_here(spec, "--repository", repository, "--check")
    assert changed.code == 1
    assert "spec.max_batch changed from 4 to 2" in changed.stdout

    as_json = build_here(spec, "--repository", repository, "--json")
    assert as_json.code == 0, as_json.stderr
    document = json.loads(as_json.stdout)
    report = ArloReport.model_validate(document["models"][0])
    assert (report.outcome, report.version, document["exit_code"]) == ("published", 2, 0)
    assert {row.batch for row in report.rows} == {1, 2}


def test_a_second_run_loads_no_heavy_library(published: tuple[Path, Path, ArloReport]) -> None:
    spec, repository, _ = published
    code = (
        "import sys\nfrom tidal_builders.commands.build import build\n"
        "from pathlib import Path\nimport typer\n"
        f"try: build([Path({str(spec)!r})], repository=Path({str(repository)!r}), only=None)\n"
        "except typer.Exit as e: assert e.exit_code == 0, e.exit_code\n"
        "print([m for m in ('torch', 'transformers', 'openvino', 'nncf', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_only_builds_the_named_specs(write_spec: WriteSpec, tmp_path: Path) -> None:
    specs = [write_spec(name=name) for name in ("one", "two")]
    done = build_here(*specs, "--repository", tmp_path / "r", "--only", "two", "--dry-run", "--json")
    assert [model["name"] for model in json.loads(done.stdout)["models"]] == ["two"]
    wrong = build_here(*specs, "--only", "tow", "--check")
    assert wrong.code == 2
    assert "did you mean 'two'" in wrong.stderr


def test_a_missed_tolerance_exits_3_and_reports_the_error(write_spec: WriteSpec, tmp_path: Path) -> None:
    done = build_here(write_spec(tolerance=1e-9), "--repository", tmp_path / "r")
    assert done.code == 3, done.stderr
    assert "not published" in done.stdout
    assert "exceeds the tolerance 1e-09 by a factor of" in done.stdout
    assert ModelEntry(tmp_path / "r/tiny").versions() == []
    assert not (tmp_path / "r/tiny/config.pbtxt").exists()


def test_an_invalid_spec_does_not_prevent_the_build_of_others(write_spec: WriteSpec, tmp_path: Path) -> None:
    bad, good = write_spec(name="bad", labels=["one"]), write_spec(name="good")
    done = build_here(bad, good, "--repository", tmp_path / "r")
    assert done.code == 2
    assert "error: bad: field 'labels'" in done.stderr
    assert "good: version 1 published" in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "r/tiny/.staging-1/manifest.json"),
        RuntimeError(f"while serializing: {os.strerror(errno.ENOSPC)} (os error 28)"),  # as a library reports it
    ],
)
def test_a_full_disk_exits_3_with_an_error(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr("tidal_builders.commands.build._build", full)
    done = build_here(write_spec(), "--repository", tmp_path / "r")
    assert done.code == 3
    assert done.stderr == f"error: tiny: the disk is full: {error}\n"


@pytest.mark.parametrize("text", ["kind: arlo\n", "kind: [\n", "kind: tabbi\nname: x\n"])
def test_an_invalid_spec_exits_2(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = build_here(path, "--repository", tmp_path / "r")
    assert done.code == 2
    assert done.stderr.startswith("error: spec ")
    assert "Traceback" not in done.stderr


def test_usage() -> None:
    assert build_here().code == 2
    assert build_here("--nothing").code == 2
    shown = tidal_build("--help")
    assert shown.returncode == 0
    for word in ("Examples:", "Exit codes:", "--dry-run", "--schema"):
        assert word in shown.stdout
    schema = build_here("--schema")
    assert schema.code == 0
    assert "oneOf" in json.loads(schema.stdout)
