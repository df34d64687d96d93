"""Plans the build of a base for fine-tuned tasks, without loading the source model."""

from __future__ import annotations

import os
from pathlib import Path

from tidal.engines import choose_device, engine_entry
from tidal.pets.manifest import PetsManifest, load_pets_manifest
from tidal.pets.openvino_engine.native import library_path
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import code_hash, source_folder
from tidal_builders.foreign.recognise import ENCODERS, require
from tidal_builders.pets.spec import PetsSpec
from tidal_builders.planning import TextModelPlan, compare, ingredients, text_file, text_ingredient

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "openvino")


# What the build of a base would publish.
PetsPlan = TextModelPlan[PetsManifest]


def plan_pets(spec: PetsSpec, repository: Path, base: Path) -> PetsPlan:
    """Compare what is published with the current spec, source, code, libraries and device.

    Args:
        spec: Spec of the base.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: The source model or the samples do not exist, or the engine does not run on the device.
        Unsupported: The engine's library is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, ENCODERS, spec.kind)
    samples = text_file("samples", spec.samples, base)
    threads = spec.threads or len(os.sched_getaffinity(0))
    engine = engine_entry(spec.engine)
    engine_libraries = (engine.distribution, *engine.build_libraries)
    parts = ingredients(
        spec,
        source=source,
        code=code_hash("tidal_builders.pets.build"),
        device_kind=choose_device(spec.engine, spec.device),
        libraries=tuple(dict.fromkeys((*_LIBRARIES, *engine_libraries))),
        more={"threads": str(threads), "kernels": library_path().stem, **text_ingredient("samples file", samples)},
    )
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_pets_manifest, parts)
    return PetsPlan(
        entry=entry,
        ingredients=parts,
        published=published,
        reasons=reasons,
        source=source,
        samples=samples,
        threads=threads,
    )
