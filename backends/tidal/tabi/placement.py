"""Where a cascade's levels run: in its own process, or as models of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.errors import InvalidArgument
from tidal.tabi.manifest import TabiManifest


def embedded_levels(
    repository: Path,
    manifest: TabiManifest,
    levels: Literal["embedded", "models"],
    asked: Iterable[int],
    read: Callable[[Path], ArloManifest] = load_arlo_manifest,
) -> tuple[int, ...]:
    """Indices of the levels that run in the cascade's process, of those that it asks.

    Not a partitioned one, whose runtimes are models of the server, nor a task of an encoder that others share, nor one
    whose version is not in the repository, which a server may have from another.

    Args:
        repository: with the levels' models.
        manifest: of the cascade.
        levels: the parameter of the cascade's config.
        asked: indices of levels.
        read: Reader of the manifest in a version's folder; raises InvalidArgument where it is not one of an Arlo model.
    """
    if levels == "models":
        return ()
    return tuple(index for index in asked if _polymorphic(repository, manifest, index, read))


def _polymorphic(repository: Path, manifest: TabiManifest, index: int, read: Callable[[Path], ArloManifest]) -> bool:
    level = manifest.levels[index]
    if level.task is not None:
        return False
    try:
        return read(repository / level.model / str(level.version)).placement == "polymorphic"
    except InvalidArgument:
        return False
