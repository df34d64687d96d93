"""What any published version is: every kind of manifest in one place, above the systems that define them."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from tidal.arlo.manifest import ArloManifest
from tidal.engine_model.manifest import EngineManifest
from tidal.errors import InvalidArgument, did_you_mean
from tidal.flover.manifest import FloverManifest
from tidal.manifest import MANIFEST_FILE, read_manifest
from tidal.otas.manifest import OtasManifest
from tidal.pets.manifest import PetsManifest
from tidal.tabi.manifest import TabiManifest

AnyManifest = ArloManifest | EngineManifest | TabiManifest | PetsManifest | OtasManifest | FloverManifest

KINDS: dict[str, type[AnyManifest]] = {
    "arlo": ArloManifest,
    "engine": EngineManifest,
    "tabi": TabiManifest,
    "pets": PetsManifest,
    "otas": OtasManifest,
    "flover": FloverManifest,
}


class _Kind(BaseModel):
    kind: str


def load_published(version_dir: Path) -> AnyManifest:
    """Read and validate `manifest.json` of a version of any kind.

    Raises:
        InvalidArgument: the file is missing, is not valid, or names a kind or a field that this release does not know.
    """
    kind = read_manifest(version_dir, _Kind).kind
    if kind not in KINDS:
        raise InvalidArgument(
            f"{version_dir / MANIFEST_FILE} is of the unknown kind '{kind}': {did_you_mean(kind, KINDS)}"
        )
    return read_manifest(version_dir, KINDS[kind])
