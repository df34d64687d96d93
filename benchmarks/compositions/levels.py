"""Tabi's levels on Arlo's runtimes: variants of one cascade that differ in how its levels run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from benchmarks.compositions.prepare import CASCADE, PARTITIONED, STATIC, CascadeArtefacts
from benchmarks.tabi.repository import pad
from tidal.arlo.manifest import ArloManifest
from tidal.engine_model.manifest import load_engine_manifest
from tidal.manifest import MANIFEST_FILE
from tidal.repository.names import runtime_model

PADDED, ONE_ENGINE, ARLO = "padded", "one engine", "Arlo"
ARLO_STATIC, ARLO_MODELS, ARLO_PARTITIONED = "Arlo, static", "Arlo, models", "Arlo, partitioned"
_AS_MODELS = 'parameters { key: "levels" value { string_value: "models" } }\n'


@dataclass(frozen=True, slots=True)
class CascadeVariant:
    """One way to run a cascade's levels.

    Attributes:
        name: Name in tables.
        description: Description in tables.
        levels: Prefix of the built models that its levels are copies of.
        change: Function from a level's manifest to the one that is served.
        config: Lines for the cascade's config.pbtxt.
    """

    name: str
    description: str
    levels: str = CASCADE
    change: Callable[[ArloManifest], ArloManifest] = field(default=lambda manifest: manifest)
    config: str = ""

    @property
    def model(self) -> str:
        """Name of the variant's model."""
        return "c_" + self.name.replace(", ", "_").replace(" ", "_").lower()


def one_engine(manifest: ArloManifest) -> ArloManifest:
    """Return a manifest with one runtime for all lengths: a batch is as long as its longest query.

    Args:
        manifest: Manifest of a level.
    """
    return manifest.model_copy(update={"runtimes": (manifest.runtimes[-1],)})


SYSTEMS = (
    CascadeVariant(PADDED, "one engine per level, every text padded to 512 tokens", change=pad),
    CascadeVariant(ONE_ENGINE, "one engine per level for all lengths, without runtimes by length", change=one_engine),
    CascadeVariant(ARLO, "Arlo's runtimes by length in the cascade's process, over one engine per level"),
    CascadeVariant(ARLO_STATIC, "the same over one engine per length", levels=STATIC),
    CascadeVariant(ARLO_MODELS, "Arlo's runtimes, with the levels as models of the server", config=_AS_MODELS),
    CascadeVariant(ARLO_PARTITIONED, "one instance per length, placed by Algorithm 1", levels=PARTITIONED),
)

# The variants of the claims: all run the cascade's own levels.
CLAIMED = tuple(system for system in SYSTEMS if system.name in (PADDED, ONE_ENGINE, ARLO))


def write_system(repository: Path, artefacts: CascadeArtefacts, system: CascadeVariant) -> None:
    """Add a variant of the cascade, with its levels, to a repository on the artefacts' file system.

    All variants have the same version and thresholds, so that a query with the same id has the same draws in all.

    Args:
        repository: Repository to write to.
        artefacts: Built artefacts.
        system: Variant to add.
    """
    made = artefacts.manifest
    levels = []
    for level in made.levels:
        folder, manifest = artefacts.level(system.levels, level.name)
        model = f"{system.model}_{level.name}"
        _copy(folder, repository / model, system.change(manifest))
        for runtime in manifest.runtimes if manifest.placement == "partitioned" else ():
            own = artefacts.version(runtime_model(folder.parent.name, runtime.max_length))
            engine = load_engine_manifest(own).model_copy(update={"front": model})
            _copy(own, repository / runtime_model(model, runtime.max_length), engine)
        update = {"model": model, "version": int(folder.name), "fingerprint": manifest.fingerprint}
        levels.append(level.model_copy(update=update))
    front = made.model_copy(update={"name": system.model, "levels": tuple(levels)})
    _copy(artefacts.version(CASCADE), repository / system.model, front, system.config)


def _copy(version: Path, target: Path, manifest: BaseModel, more: str = "") -> None:
    """Create a model from a version: small files are copied, engines are linked."""
    source = version.parent
    shutil.copytree(version, target / version.name, copy_function=_link)
    config = (source / "config.pbtxt").read_text().replace(f'"{source.name}"', f'"{target.name}"')
    (target / "config.pbtxt").write_text(config + more)
    (target / version.name / MANIFEST_FILE).write_text(manifest.model_dump_json())


def _link(source: str, target: str) -> None:
    if "engines" in Path(source).parts:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
