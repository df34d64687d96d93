"""Whether a vision transformer has to be built, found without loading it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import tidal
import tidal_builders
from tidal.engines import EngineKind, PlanOptions, choose_device
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import hash_files, source_folder
from tidal_builders.foreign.recognise import VISION, require
from tidal_builders.otas.spec import OtasSpec
from tidal_builders.otas.target import Target
from tidal_builders.planning import BuildPlan, compare, ingredients

_LIBRARIES = ("torch", "numpy")
_ENGINE_LIBRARIES: dict[EngineKind, tuple[str, ...]] = {
    "openvino": ("openvino",),
    "torch": (),
    "tensorrt": ("tensorrt", "onnxscript"),
}


@dataclass(frozen=True, slots=True)
class OtasPlan(BuildPlan[OtasManifest]):
    """`target` says what runs the engines, and where."""

    target: Target


def plan_otas(spec: OtasSpec, repository: Path, base: Path) -> OtasPlan:
    """Compare what is published with what the spec, the source, the code, the libraries and the device are now.

    Args:
        spec: what is asked for.
        repository: the model repository; it need not exist.
        base: folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: the source model cannot be found, or the engine does not run on that device.
        Unsupported: the engine's library is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, VISION, spec.kind)
    target = Target(
        spec.engine,
        choose_device(spec.engine, spec.device),
        spec.threads or len(os.sched_getaffinity(0)),
        spec.tensorrt or PlanOptions(),
    )
    libraries = (*_LIBRARIES, *_ENGINE_LIBRARIES[spec.engine])
    parts = ingredients(spec, source, _code_hash(), target.device, target.threads, libraries)
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_otas_manifest, parts)
    return OtasPlan(entry, source, parts, published, reasons, target)


def _code_hash() -> str:
    """Hash over the code that decides what is built and how fast it is."""
    library, builders = Path(tidal.__path__[0]), Path(tidal_builders.__path__[0])
    own = [*builders.glob("otas/*.py"), builders / "timing.py", builders / "planning.py"]
    used = [library / "otas" / f"{name}.py" for name in ("manifest", "profile", "runner")]
    used += [*library.glob("engines/**/*.py"), library / "manifest.py"]
    return hashlib.sha256((hash_files(builders, own) + hash_files(library, used)).encode()).hexdigest()
