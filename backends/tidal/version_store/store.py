"""A store of versions behind a URI.

models/<model>/<version>.json    a version's manifest, written after everything that it names
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from tidal.errors import InvalidArgument, NotFound, Unsupported, did_you_mean
from tidal.version_store.store_files import StoreFiles
from tidal.version_store.stored_version import (
    MAX_MANIFEST_BYTES,
    StoredVersion,
    is_model_name,
    is_version_number,
    parse_stored,
)
from tidal.version_store.task_revisions import TaskRevisions
from tidal_client.extras import install_command

# Schemes of URIs, each with the extra that installs its library.
SCHEMES: dict[str, str] = {"file": "cluster", "s3": "s3", "gs": "gcs"}


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


class VersionStore(StoreFiles):
    """Versions of models and their files.

    Args:
        files: File system of fsspec.
        root: Path of the store in it.
        uri: The store's URI, for errors.
    """

    @cached_property
    def tasks(self) -> TaskRevisions:
        """Tasks of its models."""
        return TaskRevisions(self)

    def models(self) -> list[str]:
        """Names of the models that have versions, sorted."""
        return sorted(filter(is_model_name, self.names("models")))

    def versions(self, model: str) -> list[int]:
        """Versions of a model, ascending."""
        names = self.names(f"models/{model}") if is_model_name(model) else []
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
        content = self.read_document(path, MAX_MANIFEST_BYTES)
        if content is None:
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
        if self.create_document(path, content, MAX_MANIFEST_BYTES) is None:
            return None
        return self.find(stored.model, stored.version)

    @staticmethod
    def _manifest(model: str, version: int) -> str:
        return f"models/{model}/{version}.json"
