"""A partitioned model and the Triton models of its runtimes: which belong together.

The *front* `<model>` reads requests and chooses a runtime; `<model>_len<N>` runs inputs padded to N tokens, one for
each runtime. The front's build publishes all of them with the same version number, the front last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import ArloManifest
from tidal.engine_model.manifest import EngineManifest
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.repository.published import AnyManifest, load_published


@dataclass(frozen=True, slots=True)
class Family:
    """A partitioned model's newest version: the front's name, its version, and its runtimes' lengths, ascending."""

    front: str
    version: int
    lengths: tuple[int, ...]

    @property
    def runtime_models(self) -> dict[int, str]:
        """Names of the runtimes' models by length, ascending."""
        return {length: runtime_model(self.front, length) for length in self.lengths}


def family(repository: Path, model: str) -> Family | None:
    """The family of a front or of one of its runtimes' models.

    None for a model that stands by itself, is not published or whose manifest cannot be read. A runtime's model
    whose length only an older kept version of the front has belongs to the family too, though not to its lengths.
    """
    manifest = _newest(repository, model)
    if isinstance(manifest, EngineManifest):
        model = manifest.front or model
        manifest = _newest(repository, model)
    if not isinstance(manifest, ArloManifest) or manifest.placement != "partitioned":
        return None
    lengths = tuple(runtime.max_length for runtime in manifest.runtimes)
    return Family(model, ModelEntry(repository / model).versions()[-1], lengths)


def front_of(repository: Path, model: str) -> str | None:
    """The front of which a model runs a runtime, as its newest version says; None for any other model."""
    manifest = _newest(repository, model)
    return manifest.front if isinstance(manifest, EngineManifest) else None


def _newest(repository: Path, model: str) -> AnyManifest | None:
    folder = ModelEntry(repository / model).latest()
    try:
        return load_published(folder) if folder is not None else None
    except InvalidArgument:
        return None
