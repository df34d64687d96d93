"""Building the shared object, and the errors if it cannot be built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidal.batcher.build
import tidal.compiling
from tidal.batcher.build import build
from tidal.batcher.library import LIBRARY
from tidal.errors import Internal, NotFound
from tidal.server.diagnosis import batcher_check
from tidal.server.doctor_check import DoctorCheck

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a library that is built in a moment, in place of the batcher's."""
    folder = tmp_path / "batcher"
    folder.mkdir()
    text = 'extern "C" const char tidal_batcher_sources[] = "tidal_batcher_sources=" TIDAL_SOURCES;\n'
    (folder / "batcher.cpp").write_text(text)
    monkeypatch.setattr(tidal.compiling, "source_folder", lambda _path, _known: folder)
    return folder


@needs_compiler
def test_it_is_built_when_its_sources_change(sources: Path) -> None:
    assert not LIBRARY.is_current()
    first = build()
    made = first.stat()
    assert (first, LIBRARY.is_current()) == (LIBRARY.file, True)
    assert build().stat() == made
    assert build(force=True).stat().st_ino != made.st_ino  # what a server has loaded is left as it is
    (sources / "seen.hpp").write_text("// new\n")
    assert not LIBRARY.is_current()
    build()
    assert LIBRARY.is_current()
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@needs_compiler
def test_compiler_errors_are_passed_on(sources: Path) -> None:
    (sources / "bad.cpp").write_text("#error no good\n")
    with pytest.raises(Internal, match="no good"):
        build()
    assert not LIBRARY.file.exists()


def test_a_missing_compiler_is_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotFound, match=r"g\+\+ is missing, and the custom batcher is built with it.*: install g\+\+ 9"):
        build()
    found = batcher_check()
    assert (found.verdict, found.advice) == ("note", "install g++ 9 or newer, then python -m tidal.batcher.build")


@needs_compiler
def test_missing_headers_are_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidal.batcher.build, "find_spec", lambda name: None)
    with pytest.raises(NotFound, match="compiled against nlohmann-json: pip install nlohmann-json"):
        build()


@needs_compiler
def test_doctor_reports_the_library(sources: Path) -> None:
    assert batcher_check().verdict == "note"
    path = build()
    assert batcher_check() == DoctorCheck("batcher", "ok", str(path))
    (sources / "batcher.cpp").write_text((sources / "batcher.cpp").read_text() + "// new\n")
    found = batcher_check()
    assert (found.verdict, found.advice) == ("warning", "python -m tidal.batcher.build, then reload the models")


def test_the_command_ends_with_one_line(tmp_path: Path) -> None:
    """As `make install` calls it, which goes on without the batcher."""
    command = [sys.executable, "-m", "tidal.batcher.build", "--force"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: g++ is missing")
    assert len(done.stderr.splitlines()) == 1


def test_the_installed_sources_are_complete() -> None:
    """pyproject.toml lists them by pattern."""
    names = {path.name for path in LIBRARY.sources.iterdir() if path.is_file()}
    assert {path.rpartition(".")[2] for path in names} <= {"cpp", "hpp", "h"}
