"""Whether a model has to be built, found without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal import device
from tidal.errors import InvalidArgument
from tidal.manifest import Manifest, load_manifest
from tidal.repository import ModelEntry
from tidal_builders.fingerprint import changes, fingerprint, ingredients, source_folder
from tidal_builders.specs import ArloSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be built from what, and why; nothing has to be built when there are no reasons."""

    entry: ModelEntry
    source: Path
    samples: Path | None
    ingredients: dict[str, str]
    fingerprint: str
    published: Manifest | None
    reasons: tuple[str, ...]

    @property
    def version(self) -> int | None:
        """The newest published version."""
        return max(self.entry.versions(), default=None)


def make_plan(spec: ArloSpec, repository: Path, base: Path) -> Plan:
    """Compare what is published with what the spec, the source, the code, the libraries and the device are now.

    Args:
        spec: what is asked for.
        repository: the model repository; it need not exist.
        base: folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: the source model or the samples cannot be found.
    """
    source = source_folder(spec.model, spec.revision, base)
    samples = None if spec.samples is None else base / spec.samples.expanduser()
    if samples is not None and not samples.is_file():
        raise InvalidArgument(f"field 'samples': there is no file {samples}")
    parts = ingredients(spec, source, samples)
    entry = ModelEntry(repository / spec.name)
    published, reasons = _compare(entry, parts)
    return Plan(entry, source, samples, parts, fingerprint(parts), published, tuple(reasons))


def _compare(entry: ModelEntry, parts: dict[str, str]) -> tuple[Manifest | None, list[str]]:
    latest = entry.latest()
    if latest is None:
        return None, ["no version is published"]
    try:
        manifest = load_manifest(latest)
        if reasons := changes(manifest.ingredients, parts):
            return manifest, reasons
        manifest.check(latest, device.cpu())
    except InvalidArgument as error:
        return None, [str(error)]
    return manifest, []
