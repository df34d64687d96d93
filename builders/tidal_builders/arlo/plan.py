"""Whether a model has to be built, found without loading it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.runtimes import missing_runtimes
from tidal_builders.fingerprint import fingerprint, ingredients, source_folder
from tidal_builders.foreign.recognise import SINGLE_LABEL, Task, require
from tidal_builders.planning import compare
from tidal_builders.specs import ArloSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be built from what, and why; nothing has to be built when there are no reasons.

    `missing` is what the newest version lacks in the models of its runtimes, and can be made from it without a build.
    """

    entry: ModelEntry
    source: Path
    samples: Path | None
    ingredients: dict[str, str]
    fingerprint: str
    published: ArloManifest | None
    reasons: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def version(self) -> int | None:
        """The newest published version."""
        return max(self.entry.versions(), default=None)


def make_plan(spec: ArloSpec, repository: Path, base: Path, *, accepted: Collection[Task] = SINGLE_LABEL) -> Plan:
    """Compare what is published with what the spec, the source, the code, the libraries and the device are now.

    Args:
        spec: what is asked for.
        repository: the model repository; it need not exist.
        base: folder that relative paths of the spec start from.
        accepted: tasks of the source model that are served.

    Raises:
        InvalidArgument: the source model or the samples cannot be found, or it is a model of another task.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, accepted, spec.kind)
    samples = None if spec.samples is None else base / spec.samples.expanduser()
    if samples is not None and not samples.is_file():
        raise InvalidArgument(f"field 'samples': there is no file {samples}")
    parts = ingredients(spec, source, samples)
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_arlo_manifest, parts)
    missing: list[str] = []
    if published is not None and not reasons:
        missing = missing_runtimes(entry, published, entry.versions()[-1])
    return Plan(entry, source, samples, parts, fingerprint(parts), published, reasons, tuple(missing))
