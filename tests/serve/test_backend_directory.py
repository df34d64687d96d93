"""Folders that are detected as backends."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidal
from tidal.errors import NotFound
from tidal.server.backend_directory import adapters


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
