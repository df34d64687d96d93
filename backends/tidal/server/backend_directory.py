"""The folder for tritonserver's `--backend-directory`: the Python backend, its stub, and Tidal's backends."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import tidal
from tidal.errors import NotFound
from tidal.server.installation import STUB_NAME, TritonInstallation


def adapters() -> dict[str, Path]:
    """Tidal's backends by name: folders with a `model.py`, next to this package or installed with it.

    Folders with an `__init__.py` are packages of other projects, which are next to an installed package.

    Raises:
        NotFound: The installation lacks the backends.
    """
    checkout = Path(tidal.__file__).resolve().parent.parent
    installed = Path(sysconfig.get_path("data")) / "share" / "tidal" / "backends"
    for root in (checkout, installed):
        folders = [path.parent for path in sorted(root.glob("*/model.py"))]
        found = {folder.name: folder for folder in folders if not (folder / "__init__.py").exists()}
        if found:
            return found
    raise NotFound(f"Tidal's backends are neither in {checkout} nor in {installed}; reinstall tidal")


def python_backends() -> frozenset[str]:
    """Names of the backends that run in Python stubs."""
    return frozenset({"python", *adapters()})


def assemble(target: Path, installation: TritonInstallation, extra: dict[str, Path] | None = None) -> Path:
    """Make a folder a complete backend directory; a second call updates it.

    Args:
        target: Folder to fill; created where it does not exist.
        installation: Installation of tritonserver whose Python backend to use.
        extra: Folders of further backends by name, for example the operator's own.

    Returns:
        `target`.
    """
    python = target / "python"
    python.mkdir(parents=True, exist_ok=True)
    for source in (*installation.python_backend.iterdir(), installation.stub):
        if source.is_file():
            _replace(python / source.name, source)
    (python / STUB_NAME).chmod(0o755)
    for name, folder in {**adapters(), **(extra or {})}.items():
        (target / name).mkdir(exist_ok=True)
        for source in (*folder.glob("*.py"), *folder.glob("*.so")):
            _replace(target / name / source.name, source)
    return target


def _replace(target: Path, source: Path) -> None:
    """Copy a file under a new inode: a process of the server before may still be ending with the old one mapped."""
    target.unlink(missing_ok=True)
    shutil.copy2(source, target)
