"""The two ways in which the measured model is built: polymorphic and partitioned, of the same source and precision."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arlo.workload import LONGEST
from benchmarks.report import progress
from benchmarks.serving_path.prepare import prepare as prepare_source
from tidal.manifest import Manifest, load_manifest
from tidal.repository import ModelEntry

POLYMORPHIC = "intents"
PARTITIONED = "intents_partitioned"
# As many runtimes as the paper compiles (§5, "Parameter settings").
_LENGTHS = list(range(64, LONGEST + 1, 64))


@dataclass(frozen=True, slots=True)
class Artefacts:
    """A repository with both models, and the hash of the recipe that the source model was trained by."""

    repository: Path
    digest: str

    def version(self, model: str) -> Path:
        """The model's published version folder."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest

    def manifest(self, model: str) -> Manifest:
        """What was published with it."""
        return load_manifest(self.version(model))


def prepare(precision: str) -> Artefacts:
    """Train and build what is missing, or was built for another machine or by other code."""
    source_repository, source, digest = prepare_source()
    folder = source_repository.parent / f"arlo-{precision}"
    folder.mkdir(exist_ok=True)
    common = f"kind: arlo\nmodel: {source}\nprecision: {precision}\nlengths: {_LENGTHS}\n"
    specs = {
        POLYMORPHIC: "placement: polymorphic\nform: dynamic\n",
        PARTITIONED: "placement: partitioned\nform: static\n",
    }
    for model, placement in specs.items():
        spec = folder / f"{model}.yaml"
        spec.write_text(f"{common}name: {model}\n{placement}")
        progress(f"building {model} (nothing to do when it is up to date)")
        command = [sys.executable, "-m", "tidal_client.main", "build", str(spec), "--repository", str(folder)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return Artefacts(folder, digest)


if __name__ == "__main__":
    print(f"artefacts {prepare(sys.argv[1] if len(sys.argv) > 1 else 'fp32').digest}")
