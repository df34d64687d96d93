"""What a published version was made of, so that a build that would make it again is not run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tidal
import tidal_builders
from tidal import device
from tidal.device import library_version
from tidal.engines import EngineKind, choose_device
from tidal.errors import InvalidArgument
from tidal.manifest import sha256_file
from tidal_builders.specs import ArloSpec

# Of every build, and what each engine adds.
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")
_ENGINE_LIBRARIES: dict[EngineKind, tuple[str, ...]] = {
    "openvino": ("openvino", "nncf"),
    "torch": (),
    "tensorrt": ("tensorrt", "onnxscript"),
}
# Files of a Hugging Face folder that decide what the model computes. Pickled weights are not read.
SOURCE_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")
# Builders that have nothing to do with compiling a classifier, by folder.
_OTHERS = frozenset({"tabi", "pets", "otas", "flover"})


@dataclass(frozen=True, slots=True)
class Workers:
    """How a model is run on this machine."""

    contexts: int
    threads: int


def workers(spec: ArloSpec) -> Workers:
    """The spec's workers, or the machine's default: engines of up to 4 threads, as many as there are cores for.

    Beyond 4 threads encoders of usual size scale badly. A partitioned model's instances have a core each. On a GPU it
    is one engine: a batch takes all of it.
    """
    if choose_device(spec.engine, spec.device) == "gpu":
        return Workers(spec.contexts or 1, spec.threads or 1)
    cores = len(os.sched_getaffinity(0))
    threads = spec.threads or (1 if spec.placement == "partitioned" else min(4, cores))
    return Workers(spec.contexts or max(1, cores // threads), threads)


def one_a_thread(spec: ArloSpec) -> Workers | None:
    """The other way to use the same threads, for a server to choose from.

    None where the spec says how to run, and for engine torch, which has one number of threads for a whole process.
    """
    default = workers(spec)
    if spec.engine == "torch" or spec.threads or spec.contexts or default.threads == 1:
        return None
    return Workers(default.contexts * default.threads, 1)


def source_folder(model: str, revision: str | None, base: Path) -> Path:
    """The folder with the source model's files: a local one as it is, a Hugging Face id downloaded once.

    Raises:
        InvalidArgument: no such folder, and no model of that id that can be reached or was downloaded before.
    """
    local = base / Path(model).expanduser()
    if local.is_dir():
        return local
    if model.startswith(("/", "./", "../", "~")):
        raise InvalidArgument(f"field 'model': there is no folder {local}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(SOURCE_PATTERNS)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(
            f"field 'model': '{model}' is neither a folder nor a Hugging Face model that can be had now: {reason}"
        ) from None


def hash_files(root: Path, paths: Iterable[Path]) -> str:
    """Hex SHA-256 over names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def hash_source(folder: Path) -> str:
    """Hex SHA-256 over the files of a source model."""
    return hash_files(folder, {path for pattern in SOURCE_PATTERNS for path in folder.glob(pattern)})


def ingredients(spec: ArloSpec, source: Path, samples: Path | None) -> dict[str, str]:
    """Everything that a build depends on, by name, each as a short text."""
    content = json.loads(spec.model_dump_json())
    found = workers(spec)
    parts = {f"spec.{name}": json.dumps(value) for name, value in content.items()}
    parts |= {
        "source files": hash_source(source),
        "samples file": sha256_file(samples) if samples else "none",
        "builder code": _code_hash(),
        "device": str(device.here(choose_device(spec.engine, spec.device))),
        "workers": f"{found.contexts} of {found.threads} threads",
    }
    libraries = (*_LIBRARIES, *_ENGINE_LIBRARIES[spec.engine])
    return parts | {f"library {name}": library_version(name) or "none" for name in libraries}


def fingerprint(parts: Mapping[str, str]) -> str:
    """One hash for all ingredients."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()


def changes(built: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between the ingredients of a published version and today's, a clause each."""
    said = []
    for name in sorted(built.keys() | now.keys()):
        old, new = built.get(name, "none"), now.get(name, "none")
        if old != new:
            long = len(old) == 64 or len(new) == 64
            said.append(f"{name} changed" if long else f"{name} changed from {old} to {new}")
    return said


def _code_hash() -> str:
    """Hash over the code that decides what is built: the builders (not `_OTHERS`), the engines and the manifest."""
    library, builders = (Path(package.__path__[0]) for package in (tidal, tidal_builders))
    own = hash_files(
        builders, (path for path in builders.rglob("*.py") if not _OTHERS & set(path.relative_to(builders).parts))
    )
    used = [*library.glob("engines/**/*.py"), library / "manifest.py", library / "profiles.py"]
    return hashlib.sha256((own + hash_files(library, used)).encode()).hexdigest()
