"""The two ways in which the measured model is built: polymorphic and partitioned, of the same source and precision."""

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
    """A repository with the built models, their source model, and the hash of the recipe that it was trained by."""

    repository: Path
    source: Path
    digest: str

    def version(self, model: str) -> Path:
        """The model's published version folder."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest

    def manifest(self, model: str) -> ArloManifest:
        """What was published with it."""
        return load_arlo_manifest(self.version(model))


def prepare(precision: str) -> ArloArtefacts:
    """Train and build what is missing, or was built for another machine or by other code."""
    source_repository, source, digest = prepare_source()
    repository = source_repository.parent / f"arlo-{precision}"
    repository.mkdir(exist_ok=True)
    artefacts = ArloArtefacts(repository, source, digest)
    build(artefacts, POLYMORPHIC, precision, "placement: polymorphic\nform: dynamic\n")
    build(artefacts, PARTITIONED, precision, "placement: partitioned\nform: static\n")
    return artefacts


def build(artefacts: ArloArtefacts, model: str, precision: str, settings: str) -> None:
    """Build one model by a spec that consists of the common lines and `settings`, unless it is up to date."""
    spec = artefacts.repository / f"{model}.yaml"
    spec.write_text(
        f"kind: arlo\nname: {model}\nmodel: {artefacts.source}\nprecision: {precision}\nlengths: {_LENGTHS}\n{settings}"
    )
    progress(f"building {model} (nothing to do when it is up to date)")
    command = [sys.executable, "-m", "tidal_client.main", "build", str(spec), "--repository", str(artefacts.repository)]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(f"artefacts {prepare(sys.argv[1] if len(sys.argv) > 1 else 'fp32').digest}")
