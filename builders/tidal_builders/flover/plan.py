"""Whether a decoder has to be built, found without loading it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import tidal
import tidal_builders
from tidal.engines import choose_device
from tidal.flover.manifest import FloverManifest, load_flover_manifest
from tidal.flover.native.library import library, library_path
from tidal.manifest import sha256_file
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import hash_files, source_folder
from tidal_builders.flover.spec import FloverSpec
from tidal_builders.foreign.recognise import DECODERS, require
from tidal_builders.planning import BuildPlan, compare, ingredients, samples_file

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "safetensors")


@dataclass(frozen=True, slots=True)
class FloverPlan(BuildPlan[FloverManifest]):
    """`samples` are the spec's own prompts; `threads` the decoder runs on."""

    samples: Path | None
    threads: int


def plan_flover(spec: FloverSpec, repository: Path, base: Path) -> FloverPlan:
    """Compare what is published with what the spec, the source, the code, the libraries and the device are now.

    Args:
        spec: what is asked for.
        repository: the model repository; it need not exist.
        base: folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: the source model or the samples cannot be found.
        Unsupported: torch is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, DECODERS, spec.kind)
    samples = samples_file(spec.samples, base)
    threads = spec.threads or len(os.sched_getaffinity(0))
    kind = choose_device(spec.engine, spec.device)
    parts = ingredients(spec, source, _code_hash(), kind, threads, _LIBRARIES)
    parts["samples file"] = sha256_file(samples) if samples else "none"
    parts["kernels"] = library_path().stem if kind == "cpu" and library() is not None else "none"
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_flover_manifest, parts)
    return FloverPlan(entry, source, parts, published, reasons, samples, threads)


def _code_hash() -> str:
    """Hash over the code that decides what is built and how fast it is."""
    library, builders = Path(tidal.__path__[0]), Path(tidal_builders.__path__[0])
    own = [*builders.glob("flover/*.py"), *(builders / f"{name}.py" for name in ("timing", "planning", "texts"))]
    used = [path for name in ("memory", "models", "native") for path in library.glob(f"flover/{name}/*.py")]
    used += [library / "manifest.py", library / "flover/manifest.py", library / "flover/runner.py"]
    return hashlib.sha256((hash_files(builders, own) + hash_files(library, used)).encode()).hexdigest()
