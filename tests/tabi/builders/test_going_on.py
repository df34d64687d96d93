"""A build of a cascade that is killed leaves complete versions only, and answers that the next one goes on with."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tabi.builders.conftest import write_spec
from tidal.repository import ModelEntry
from tidal_builders.specs import load_spec
from tidal_builders.tabi.build import build_tabi
from tidal_builders.tabi.collect import Runner, answers_key
from tidal_builders.tabi.spec import TabiSpec

_BUILD = """
import os, signal, sys
from pathlib import Path
from tidal_builders import fingerprint
from tidal_builders.specs import load_spec
from tidal_builders.tabi import plan
from tidal_builders.tabi.build import build_tabi
fingerprint._code_hash = lambda: "code"
plan._code_hash = lambda: "cascade code"

def report(stage, share):
    if stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

spec = Path(sys.argv[1])
build_tabi(load_spec(spec), Path(sys.argv[2]), spec_file=spec, report=report)
"""


def test_killed_again_and_again(models: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, spec_file = tmp_path / "r", write_spec(tmp_path / "reviews.yaml", models, labelled)
    spec = load_spec(spec_file)
    assert isinstance(spec, TabiSpec)
    built = {"large: verify": ["small"], "search candidates": ["small", "large"], "publish": ["small", "large"]}
    for stage, names in built.items():
        process = subprocess.run(
            [sys.executable, "-c", _BUILD, str(spec_file), str(repository), stage], timeout=120, check=False
        )
        assert process.returncode == -signal.SIGKILL, stage
        assert ModelEntry(repository / "reviews").versions() == []
        for name in ("small", "large"):
            assert ModelEntry(repository / f"reviews_{name}").versions() == ([1] if name in names else [])

    def refuse(*_: object) -> None:
        raise AssertionError("a query was to run")

    monkeypatch.setattr(Runner, "_fill", refuse)
    stages: list[str] = []
    report = build_tabi(spec, repository, spec_file=spec_file, report=lambda stage, _: stages.append(stage))
    assert (report.outcome, report.version) == ("published", 1)
    assert set(stages) == {"publish"}
    assert any(name.startswith("search-") for name in report.reused)
    assert not list((repository / "reviews").glob(".staging-*"))


def test_answers_of_a_build_that_was_killed_are_not_asked_for_again(
    models: Path, labelled: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, spec_file = tmp_path / "r", write_spec(tmp_path / "reviews.yaml", models, labelled)
    command = [sys.executable, "-c", _BUILD, str(spec_file), str(repository), "search candidates"]
    assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL
    asked: list[str] = []
    fill = Runner._fill

    def noted(self: Runner, folder: Path, queries: list) -> None:  # type: ignore[type-arg]
        asked.extend(query.texts[0] for query in queries)
        fill(self, folder, queries)

    monkeypatch.setattr(Runner, "_fill", noted)
    spec = load_spec(spec_file)
    assert isinstance(spec, TabiSpec)
    report = build_tabi(spec, repository, spec_file=spec_file)
    assert report.outcome == "published"
    # Shortened queries are new, whole ones are not.
    assert asked
    assert not set(asked) & set(texts)
    for name in ("small", "large"):
        key = answers_key(repository / f"reviews_{name}" / "1")
        assert any(stage.startswith(key) for stage in report.reused), name
