"""A store of versions behind a URI, on a file system or an object store that fsspec knows.

    blobs/<first two digits>/<sha256>    content of files, each once
    models/<model>/<version>.json        a version's manifest, written after everything that it names

Nothing is changed after it was written, so readers need no lock.
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

from tidal.errors import InvalidArgument, NotFound, TidalError, Unavailable, Unsupported, did_you_mean
from tidal.manifest import FileRecord
from tidal.repository.entries import sync
from tidal.version_store.stored_version import (
    MAX_MANIFEST_BYTES,
    StoredVersion,
    is_model_name,
    is_version_number,
    parse_stored,
)
from tidal_client.extras import install_command

# Schemes of URIs, each with the extra that installs its library.
SCHEMES: dict[str, str] = {"file": "cluster", "s3": "s3", "gs": "gcs"}
_CHUNK_BYTES = 1 << 20
_ABANDONED_S = 3600


def open_store(uri: str) -> VersionStore:
    """Open the store behind a URI; nothing is read or written yet.

    Args:
        uri: URI with a scheme of `SCHEMES`, or the path of a folder.

    Raises:
        InvalidArgument: The scheme is not known.
        Unsupported: Its library is not installed; names the extra.
    """
    from fsspec.core import url_to_fs

    scheme, separator, _ = uri.partition("://")
    if not separator:
        scheme, uri = "file", f"file://{Path(uri).absolute()}"
    if scheme not in SCHEMES or "::" in uri:
        raise InvalidArgument(f"'{uri}' has the unknown scheme '{scheme}': {did_you_mean(scheme, SCHEMES)}")
    try:
        files, root = url_to_fs(uri)
    except ImportError:
        extra = SCHEMES[scheme]
        raise Unsupported(
            f"'{scheme}://' requires the extra '{extra}', which is not installed: {install_command(extra)}"
        ) from None
    return VersionStore(files, str(root).rstrip("/"), uri.rstrip("/"))


class VersionStore:
    """Versions of models and their files.

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

    def models(self) -> list[str]:
        """Names of the models that have versions, sorted."""
        return sorted(filter(is_model_name, self._names("models")))

    def versions(self, model: str) -> list[int]:
        """Versions of a model, ascending."""
        names = self._names(f"models/{model}") if is_model_name(model) else []
        return sorted(
            int(name.removesuffix(".json"))
            for name in names
            if name.endswith(".json") and is_version_number(name.removesuffix(".json"))
        )

    def newest(self, model: str) -> int:
        """Newest version of a model.

        Raises:
            NotFound: The store has no version of it.
        """
        versions = self.versions(model)
        if not versions:
            raise NotFound(f"{self.uri} has no model '{model}': {did_you_mean(model, self.models())}")
        return versions[-1]

    def find(self, model: str, version: int) -> StoredVersion | None:
        """A version's manifest; None where there is none.

        Raises:
            InvalidArgument: The manifest is refused.
        """
        path = self._manifest(model, version)
        with self._calls(f"reading {path}"):
            try:
                content = self._files.cat_file(self._at(path), start=0, end=MAX_MANIFEST_BYTES + 1)
            except FileNotFoundError:
                return None
        stored = parse_stored(content, f"{self.uri}/{path}")
        if (stored.model, stored.version) != (model, version):
            raise InvalidArgument(f"{self.uri}/{path} is the manifest of {stored.title}, not of its own path")
        return stored

    def read(self, model: str, version: int) -> StoredVersion:
        """A version's manifest.

        Raises:
            NotFound: The store does not have the version.
            InvalidArgument: The manifest is refused.
        """
        stored = self.find(model, version)
        if stored is None:
            versions = ", ".join(map(str, self.versions(model))) or "none"
            raise NotFound(f"{self.uri} has no version {version} of model '{model}'; its versions are {versions}")
        return stored

    def create(self, stored: StoredVersion) -> StoredVersion | None:
        """Write a version's manifest unless there is one; of two publishers, one creates it.

        Returns:
            The manifest that exists already; None if this call created it.
        """
        path = self._manifest(stored.model, stored.version)
        content = stored.model_dump_json(indent=1).encode()
        if len(content) > MAX_MANIFEST_BYTES:
            raise InvalidArgument(f"{stored.title} has too many files for a manifest of {MAX_MANIFEST_BYTES} bytes")
        try:
            if self._local:
                _create_file(Path(self._at(path)), content)
            else:
                self._files.pipe_file(self._at(path), content, mode="create")
        except Exception as error:
            # Stores report that a file exists in ways of their own, and an answer may be lost after it was created.
            existing = self.find(stored.model, stored.version)
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

    def _names(self, folder: str) -> list[str]:
        with self._calls(f"listing {folder}"):
            self._files.invalidate_cache()  # others publish
            try:
                found = self._files.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @staticmethod
    def _manifest(model: str, version: int) -> str:
        return f"models/{model}/{version}.json"

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
