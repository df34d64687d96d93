"""Whether a base has to be built, found without loading it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import tidal
import tidal_builders
from tidal.compiling import shared_headers
from tidal.engines import choose_device
from tidal.manifest import sha256_file
from tidal.pets.manifest import PetsManifest, load_pets_manifest
from tidal.pets.openvino_engine.native import source_folder as native_sources
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import hash_files, source_folder
from tidal_builders.foreign.recognise import ENCODERS, require
from tidal_builders.pets.spec import PetsSpec
from tidal_builders.planning import BuildPlan, compare, ingredients, samples_file

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "openvino")


@dataclass(frozen=True, slots=True)
class PetsPlan(BuildPlan[PetsManifest]):
    """`samples` are the spec's own texts; `threads` the engine runs on."""

    samples: Path | None
    threads: int


def plan_pets(spec: PetsSpec, repository: Path, base: Path) -> PetsPlan:
    """Compare what is published with what the spec, the source, the code, the libraries and the device are now.

    Args:
        spec: what is asked for.
        repository: the model repository; it need not exist.
        base: folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: the source model or the samples cannot be found, or the engine does not run on that device.
        Unsupported: the engine's library is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, ENCODERS, spec.kind)
    samples = samples_file(spec.samples, base)
    threads = spec.threads or len(os.sched_getaffinity(0))
    libraries = (*_LIBRARIES, "tensorrt", "onnxscript") if spec.engine == "tensorrt" else _LIBRARIES
    kind = choose_device(spec.engine, spec.device)
    parts = ingredients(spec, source, _code_hash(), kind, threads, libraries)
    parts["samples file"] = sha256_file(samples) if samples else "none"
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_pets_manifest, parts)
    return PetsPlan(entry, source, parts, published, reasons, samples, threads)


def _code_hash() -> str:
    """Hash over the code that decides what is built and how fast it is: of the base, not of tasks."""
    library, builders, native = (
        Path(tidal.__path__[0]),
        Path(tidal_builders.__path__[0]),
        native_sources(),
    )
    own = [
        *builders.glob("pets/*.py"),
        *builders.glob("arlo/sa*.py"),
        builders / "timing.py",
        builders / "planning.py",
        builders / "texts.py",
    ]
    used = [
        path
        for name in ("engine", "openvino_engine", "torch_engine", "tensorrt_engine")
        for path in library.glob(f"pets/{name}/*.py")
    ]
    used += [*library.glob("pets/policies/*.py"), library / "manifest.py"]
    used += [library / "pets" / f"{name}.py" for name in ("base", "manifest", "opening", "profile", "terms")]
    hashes = hash_files(builders, own) + hash_files(library, used) + hash_files(native, native.glob("*.?pp"))
    hashes += hash_files(shared_headers(), shared_headers().glob("*.hpp"))
    return hashlib.sha256(hashes.encode()).hexdigest()
