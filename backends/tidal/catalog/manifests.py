"""Reading the manifest of a published version of any kind. It imports the systems that define the manifests."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from tidal.arlo.manifest import ArloManifest
from tidal.engine_model.manifest import EngineManifest
from tidal.errors import InvalidArgument, did_you_mean
from tidal.flover.manifest import FloverManifest
from tidal.manifest import MANIFEST_FILE, Version, read_manifest
from tidal.otas.manifest import OtasManifest
from tidal.pets.manifest import PetsManifest
from tidal.tabi.manifest import TabiManifest

#: The class of each kind's manifests.
MANIFESTS: dict[str, type[Version]] = {
    "arlo": ArloManifest,
    "engine": EngineManifest,
    "tabi": TabiManifest,
    "pets": PetsManifest,
    "otas": OtasManifest,
    "flover": FloverManifest,
}


class _KindField(BaseModel):
    kind: str


def load_published(version_dir: Path) -> Version:
    """Read and validate `manifest.json` of a version of any kind.

    Args:
        version_dir: Folder of the version, `<repository>/<model>/<version>`.

    Raises:
        InvalidArgument: The file is missing, is not valid, or has a kind or field that this release does not know.
    """
    kind = read_manifest(version_dir, _KindField).kind
    if kind not in MANIFESTS:
        raise InvalidArgument(
            f"{version_dir / MANIFEST_FILE} has the unknown kind '{kind}': {did_you_mean(kind, MANIFESTS)}"
        )
    return read_manifest(version_dir, MANIFESTS[kind])
