"""The files of a version's folder on this machine, and how they differ from a version in a store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, sha256_file
from tidal.version_store.stored_version import StoredFile, StoredVersion, first_difference

# Python writes it where a model's modules are imported from.
_IGNORED = "__pycache__"


def list_folder(folder: Path) -> tuple[dict[str, os.stat_result], tuple[str, ...]]:
    """Regular files of a folder by relative path, and its empty folders.

    Raises:
        InvalidArgument: It contains a link or another kind of file.
    """
    files: dict[str, os.stat_result] = {}
    empty: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _IGNORED)
        here = Path(parent)
        for path in (here / name for name in (*folders, *names)):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                files[path.relative_to(folder).as_posix()] = status
            elif not stat.S_ISDIR(status.st_mode):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "neither a file nor a folder"
                raise InvalidArgument(f"{path} is {kind}; a store has regular files only: replace it by its content")
        if not folders and not names and here != folder:
            empty.append(here.relative_to(folder).as_posix())
    return dict(sorted(files.items())), tuple(sorted(empty))


def describe_file(path: Path, name: str) -> StoredFile:
    """Size, hash and permissions of a file.

    Args:
        path: Path of the file.
        name: Its path in the version.
    """
    status = path.stat()
    return StoredFile(
        path=name, bytes=status.st_size, sha256=sha256_file(path), mode=stat.S_IMODE(status.st_mode) & 0o777
    )


def local_difference(folder: Path, stored: StoredVersion) -> str | None:
    """How a version's folder differs from the version in a store, as a clause; None if it does not.

    Of a version with Tidal's manifest, which has the hashes of its files, only the manifest is read. Files that a
    server added since do not count.

    Args:
        folder: Folder of the version on this machine.
        stored: The version in the store.
    """
    files, _ = list_folder(folder)
    expected = {each.path: each.bytes for each in stored.files}
    found = {path: status.st_size for path, status in files.items() if path in expected}
    if (path := first_difference(expected, found)) is not None:
        return f"'{path}' differs"
    named = [each for each in stored.files if each.path == MANIFEST_FILE] or stored.files
    differing = (each.path for each in named if sha256_file(folder / each.path) != each.sha256)
    return next((f"'{path}' differs" for path in differing), None)
