"""Folders that are detected as backends."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import tidal
from tidal.errors import NotFound
from tidal.server.backend_directory import adapters, assemble
from tidal.server.installation import STUB_NAME, TritonInstallation


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake installation folder of `tidal`, next to another project's package that has a `model.py`."""
    folder = tmp_path / "lib" / "site-packages"
    for package in ("tidal", "torchgen"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    (folder / "torchgen" / "model.py").touch()
    monkeypatch.setattr(tidal, "__file__", str(folder / "tidal" / "__init__.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    return folder


def test_an_installation_has_its_own_backends_only(site_packages: Path, tmp_path: Path) -> None:
    backend = tmp_path / "share" / "tidal" / "backends" / "arlo"
    backend.mkdir(parents=True)
    (backend / "model.py").touch()
    assert adapters() == {"arlo": backend}


def test_an_installation_without_backends_is_an_error(site_packages: Path) -> None:
    with pytest.raises(NotFound, match="reinstall tidal"):
        adapters()


def test_a_stub_that_still_runs_is_replaced(tmp_path: Path) -> None:
    """At a restart: Linux refuses to overwrite an executable file in use."""
    backend, stub = tmp_path / "installed", tmp_path / STUB_NAME
    backend.mkdir()
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy2(sleep, stub)
    installation = TritonInstallation("path", tmp_path / "tritonserver", backend, stub, ())
    running = assemble(tmp_path / "backends", installation) / "python" / STUB_NAME
    process = subprocess.Popen([running, "600"])
    try:
        before = running.stat().st_ino
        assert assemble(tmp_path / "backends", installation) == tmp_path / "backends"
        assert running.stat().st_ino != before
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
