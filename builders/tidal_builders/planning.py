"""The plan of a build: what it would publish from what, and why the newest version is stale."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from tidal import device
from tidal.device import DeviceKind, library_version
from tidal.errors import InvalidArgument
from tidal.manifest import Published, Version, sha256_file
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import changes, fingerprint, hash_source

ManifestT = TypeVar("ManifestT", bound=Version)

_LIBRARY = "library "


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan(Generic[ManifestT]):
    """What a build would publish; there is nothing to build where there are no `reasons`.

    Attributes:
        entry: The model in the repository.
        ingredients: Everything that a version is made of, by name, as texts that change when it does.
        published: Manifest of the newest version, if it can be read.
        reasons: Why the newest version is stale, one clause each.
        missing: Parts outside the newest version that it lacks and that are restored without a build, one clause each.
    """

    entry: ModelEntry
    ingredients: dict[str, str]
    published: ManifestT | None
    reasons: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def version(self) -> int | None:
        """Number of the newest published version, if there is one."""
        return max(self.entry.versions(), default=None)

    @property
    def fingerprint(self) -> str:
        """Hash over the ingredients."""
        return fingerprint(self.ingredients)


# Without slots: with them, an alias such as TextModelPlan[Manifest] cannot create a frozen one (Python before 3.12).
@dataclass(frozen=True, kw_only=True)
class TextModelPlan(BuildPlan[ManifestT]):
    """The plan of a model that is built from one source model and sample texts.

    Attributes:
        source: Folder of the source model.
        samples: File of the spec's own texts or prompts, if it names one.
        threads: CPU threads of the model.
    """

    source: Path
    samples: Path | None
    threads: int


def compare(
    entry: ModelEntry, load: Callable[[Path], ManifestT], parts: Mapping[str, str]
) -> tuple[ManifestT | None, tuple[str, ...]]:
    """The newest published version and what makes it stale.

    Args:
        entry: The model in the repository.
        load: Reads the manifest of a version folder; raises InvalidArgument.
        parts: Current ingredients.

    Returns:
        The manifest, or None if it cannot be used; the reasons for a build, one clause each.
    """
    latest = entry.latest()
    if latest is None:
        return None, ("no version is published",)
    try:
        manifest = load(latest)
        if reasons := changes(manifest.ingredients, parts):
            return manifest, tuple(reasons)
        if isinstance(manifest, Published):
            manifest.check(latest, device.here(manifest.device.kind))
        else:
            manifest.check_files(latest)
    except InvalidArgument as error:
        return None, (str(error),)
    return manifest, ()


def ingredients(
    spec: BaseModel,
    *,
    source: Path,
    code: str,
    device_kind: DeviceKind,
    libraries: Sequence[str],
    more: Mapping[str, str],
) -> dict[str, str]:
    """Everything that a version is made of, as texts that change when it does.

    Args:
        spec: Spec of the model.
        source: Folder of the source model.
        code: Hash over the code that decides what is built, see `fingerprint.code_hash`.
        device_kind: Kind of device that the version is built for.
        libraries: Distributions whose versions count.
        more: Ingredients that only some kinds have, by name.
    """
    return {
        **spec_ingredients(spec),
        "source files": hash_source(source),
        "builder code": code,
        "device": str(device.here(device_kind)),
        **more,
        **library_ingredients(libraries),
    }


def spec_ingredients(spec: BaseModel, include: set[str] | None = None) -> dict[str, str]:
    """Values of a spec's fields; of those in `include`, if it is given."""
    content = json.loads(spec.model_dump_json(include=include))
    return {f"spec.{name}": json.dumps(value) for name, value in content.items()}


def library_ingredients(libraries: Sequence[str]) -> dict[str, str]:
    """Installed versions of distributions."""
    return {f"{_LIBRARY}{name}": library_version(name) or "none" for name in libraries}


def libraries_of(ingredients: Mapping[str, str]) -> dict[str, str]:
    """Versions of the distributions among a build's ingredients, by name."""
    return {name.removeprefix(_LIBRARY): text for name, text in ingredients.items() if name.startswith(_LIBRARY)}


def text_file(field: str, text: Path | None, base: Path) -> Path | None:
    """The file of texts that a field of a spec names.

    Args:
        field: Name of the field.
        text: Path that the spec names, if it names one.
        base: Folder that a relative path starts from.

    Raises:
        InvalidArgument: The file does not exist.
    """
    path = None if text is None else base / text.expanduser()
    if path is not None and not path.is_file():
        raise InvalidArgument(f"field '{field}': there is no file {path}")
    return path


def text_ingredient(name: str, file: Path | None) -> dict[str, str]:
    """Hash of a file of texts that a spec names, by the name of the ingredient."""
    return {name: sha256_file(file) if file else "none"}
