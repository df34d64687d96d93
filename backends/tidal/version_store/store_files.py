"""The files of a store, on a file system or an object store that fsspec knows: documents and contents of files.

    blobs/<first two digits>/<sha256>    content of files, each once

Documents and contents are never changed after they were written, so readers need no lock.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument, TidalError, Unavailable
from tidal.manifest import FileRecord
from tidal.repository.entries import sync

_CHUNK_BYTES = 1 << 20
_ABANDONED_S = 3600


class StoreFiles:
    """Documents and contents of files.

    Args:
        files: File system of fsspec.
        root: Path of the store in it.
        uri: The store's URI, for errors.
    """

    def __init__(self, files: Any, root: str, uri: str) -> None:
        self._files = files
        self._root = root
        self._local = bool(getattr(files, "local_file", False))
        self.uri = uri

    def names(self, folder: str) -> list[str]:
        """Names of the entries of a folder; none where there is no such folder."""
        with self._calls(f"listing {folder}"):
            self._files.invalidate_cache()  # others publish
            try:
                found = self._files.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def paths(self, folder: str) -> list[str]:
        """Paths of all files below a folder, relative to it."""
        with self._calls(f"listing {folder}"):
            self._files.invalidate_cache()  # others publish
            try:
                found = self._files.find(self._at(folder))
            except FileNotFoundError:
                return []
        return [str(path).rpartition(f"/{folder}/")[2] for path in found]

    def read_document(self, path: str, limit: int) -> bytes | None:
        """At most `limit` + 1 bytes of a document; None where there is none."""
        with self._calls(f"reading {path}"):
            try:
                content: bytes = self._files.cat_file(self._at(path), start=0, end=limit + 1)
            except FileNotFoundError:
                return None
        return content

    def create_document(self, path: str, content: bytes, limit: int) -> bytes | None:
        """Write a document unless there is one; of two writers, one creates it.

        Args:
            path: Its path in the store.
            content: Its content.
            limit: Size in bytes to which an existing one is read.

        Returns:
            The content that exists already; None if this call created it.
        """
        try:
            if self._local:
                _create_file(Path(self._at(path)), content)
            else:
                self._files.pipe_file(self._at(path), content, mode="create")
        except Exception as error:
            # Stores report that a file exists in ways of their own, and an answer may be lost after it was created.
            existing = self.read_document(path, limit)
            if existing is None:
                raise Unavailable(f"{self.uri}: writing {path} failed: {_reason(error)}") from error
            return existing
        return None

    def has(self, file: FileRecord) -> bool:
        """Whether the content of a file is stored completely."""
        path = self._blob(file)
        with self._calls(f"reading {path}"):
            try:
                found = self._files.info(self._at(path))
            except FileNotFoundError:
                return False
        return bool(found["type"] == "file" and found["size"] == file.bytes)

    def upload(self, file: FileRecord, source: Path) -> None:
        """Store the content of a file.

        Args:
            file: Size and hash of the content.
            source: Path of the file on this machine.
        """
        path = self._blob(file)
        with self._calls(f"writing {path}"):
            if self._local:
                _copy_file(source, Path(self._at(path)))
            else:
                self._files.put_file(str(source), self._at(path))

    def download(self, file: FileRecord, name: str, target: Path, advance: Callable[[int], None]) -> None:
        """Write the content of a file to disk; `target` appears when all of it is there and verified.

        Args:
            file: Size and hash of the content.
            name: Description for error messages.
            target: Path to write.
            advance: Called with the number of bytes that were read since.

        Raises:
            InvalidArgument: The content is missing, or has another size or hash.
        """
        path = self._blob(file)
        try:
            with self._calls(f"reading {path}"):
                found = self._files.info(self._at(path))
                if found["type"] != "file" or found["size"] != file.bytes:
                    raise self._damaged(name, path)
                self._read(path, file, name, target, advance)
        except FileNotFoundError:
            raise InvalidArgument(
                f"{name} is missing, {self.uri}/{path}: publish the version again from a repository that has it"
            ) from None

    def _read(self, path: str, file: FileRecord, name: str, target: Path, advance: Callable[[int], None]) -> None:
        digest, size, part = hashlib.sha256(), 0, target.with_name(f"{target.name}.part")
        with self._files.open(self._at(path), "rb") as source, part.open("wb") as output:
            while size <= file.bytes and (chunk := source.read(_CHUNK_BYTES)):
                output.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                advance(len(chunk))
            output.flush()
            os.fsync(output.fileno())
        if size != file.bytes or digest.hexdigest() != file.sha256:
            part.unlink()
            raise self._damaged(name, path)
        part.replace(target)

    def _damaged(self, name: str, path: str) -> InvalidArgument:
        return InvalidArgument(
            f"{name} differs from what was published: {self.uri}/{path} is damaged; delete it and publish the version "
            "again from a repository that has it"
        )

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @staticmethod
    def _blob(file: FileRecord) -> str:
        return f"blobs/{file.sha256[:2]}/{file.sha256}"

    @contextmanager
    def _calls(self, what: str) -> Iterator[None]:
        """Raise errors of the store's library, of any class, as Unavailable; a missing file stays FileNotFoundError."""
        try:
            yield
        except (TidalError, FileNotFoundError):
            raise
        except Exception as error:
            raise Unavailable(f"{self.uri}: {what} failed: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for part in target.parent.glob(f".{target.name}.*"):
        with suppress(OSError):  # of a publisher that was killed; another one may remove it at the same time
            if time.time() - part.stat().st_mtime > _ABANDONED_S:
                part.unlink()
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        shutil.copyfile(source, part)
        sync(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    sync(target.parent)


def _create_file(path: Path, content: bytes) -> None:
    """Create a file with its content at once; FileExistsError if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # unlike a rename, it replaces nothing
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)
