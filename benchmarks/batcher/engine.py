"""Publishes one engine for all lengths as a model of the `engine` backend, from a published intent classifier."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tidal.arlo.manifest import load_arlo_manifest
from tidal.engine_model.manifest import EngineInput, EngineManifest
from tidal.manifest import MANIFEST_FILE

# Upper bound of input ids, within the classifier's vocabulary of 30,522.
VOCABULARY = 30_000


def publish_engine(front: Path, model: Path) -> EngineManifest:
    """Write version 1 of a model whose engine accepts any length, with one thread per instance.

    Args:
        front: Version folder of the classifier, built with `form: dynamic`.
        model: Folder to write.
    """
    made_of = load_arlo_manifest(front)
    runtime = made_of.runtimes[-1]
    beside = Path(runtime.file).parent
    files = tuple(record for record in made_of.files if Path(record.path).parent == beside)
    manifest = EngineManifest(
        kind="engine",
        name=model.name,
        created=made_of.created,
        spec=made_of.spec,
        fingerprint=made_of.fingerprint,
        source=made_of.source,
        engine=made_of.engine,
        precision=made_of.precision,
        device=made_of.device,
        libraries=made_of.libraries,
        files=files,
        front=None,
        inputs=tuple(EngineInput(name=name, below=VOCABULARY if name == "input_ids" else 2) for name in made_of.inputs),
        runtime=runtime,
        threads=1,
        verification=made_of.verification,
    )
    version = model / "1"
    for record in files:
        (version / record.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(front / record.path, version / record.path)
        except OSError:
            shutil.copyfile(front / record.path, version / record.path)
    (version / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return manifest
