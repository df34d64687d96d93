"""Builds the measured model twice, polymorphic and partitioned, from the same source and in the same precision."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arlo.workload import LONGEST
from benchmarks.report import progress
from benchmarks.serving_path.prepare import prepare as prepare_source
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.repository.entries import ModelEntry

POLYMORPHIC = "intents"
PARTITIONED = "intents_partitioned"
# As many runtimes as the paper compiles (§5, "Parameter settings").
_LENGTHS = list(range(64, LONGEST + 1, 64))


@dataclass(frozen=True, slots=True)
class ArloArtefacts:
    """Prepared artefacts.

    Attributes:
        repository: Model repository with the built models.
        source: Folder of the source model.
        digest: Digest of the recipe that the source model was trained by.
    """

    repository: Path
    source: Path
    digest: str

    def version(self, model: str) -> Path:
        """Return the published version folder of a model."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest

    def manifest(self, model: str) -> ArloManifest:
        """Return the manifest of a model."""
        return load_arlo_manifest(self.version(model))


def prepare(precision: str) -> ArloArtefacts:
    """Train and build models that are missing, or stale for this machine or code."""
    source_repository, source, digest = prepare_source()
    repository = source_repository.parent / f"arlo-{precision}"
    repository.mkdir(exist_ok=True)
    artefacts = ArloArtefacts(repository, source, digest)
    build(artefacts, POLYMORPHIC, precision, "placement: polymorphic\nform: dynamic\n")
    build(artefacts, PARTITIONED, precision, "placement: partitioned\nform: static\n")
    return artefacts


def build(artefacts: ArloArtefacts, model: str, precision: str, settings: str) -> None:
    """Build one model unless it is up to date.

    Args:
        artefacts: Artefacts to build into.
        model: Name of the model.
        precision: Precision of the model.
        settings: Lines of the spec in addition to the common ones.
    """
    spec = artefacts.repository / f"{model}.yaml"
    spec.write_text(
        f"kind: arlo\nname: {model}\nmodel: {artefacts.source}\nprecision: {precision}\nlengths: {_LENGTHS}\n{settings}"
    )
    progress(f"building {model} (skipped if it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec), "--repository", str(artefacts.repository)]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(f"artefacts {prepare(sys.argv[1] if len(sys.argv) > 1 else 'fp32').digest}")
