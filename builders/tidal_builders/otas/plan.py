"""Plans the build of a vision transformer, without loading the source model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidal.engines import PlanOptions, choose_device, engine_entry
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import code_hash, source_folder
from tidal_builders.foreign.recognise import VISION, require
from tidal_builders.otas.spec import OtasSpec
from tidal_builders.otas.target import EngineTarget
from tidal_builders.planning import BuildPlan, compare, ingredients

_LIBRARIES = ("torch", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtasPlan(BuildPlan[OtasManifest]):
    """What the build of a vision transformer would publish; see `BuildPlan`.

    Attributes:
        source: Folder of the source model.
        target: Engine, device and options to compile for.
    """

    source: Path
    target: EngineTarget


def plan_otas(spec: OtasSpec, repository: Path, base: Path) -> OtasPlan:
    """Compare what is published with the current spec, source, code, libraries and device.

    Args:
        spec: Spec of the vision transformer.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: The source model does not exist, or the engine does not run on the device.
        Unsupported: The engine's library is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, VISION, spec.kind)
    target = EngineTarget(
        spec.engine,
        choose_device(spec.engine, spec.device),
        spec.threads or len(os.sched_getaffinity(0)),
        spec.tensorrt or PlanOptions(),
    )
    engine = engine_entry(spec.engine)
    parts = ingredients(
        spec,
        source=source,
        code=code_hash("tidal_builders.otas.build", engine.module),
        device_kind=target.device,
        libraries=tuple(dict.fromkeys((*_LIBRARIES, engine.distribution, *engine.build_libraries))),
        more={"threads": str(target.threads)},
    )
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_otas_manifest, parts)
    return OtasPlan(entry=entry, ingredients=parts, published=published, reasons=reasons, source=source, target=target)
