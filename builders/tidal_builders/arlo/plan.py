"""Plans the build of a text classifier, without loading the source model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.engines import choose_device, engine_entry
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.runtimes import missing_runtimes
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.workers import default_workers
from tidal_builders.fingerprint import code_hash, source_folder
from tidal_builders.foreign.recognise import SINGLE_LABEL, Task, require
from tidal_builders.planning import BuildPlan, compare, ingredients, samples_file, samples_ingredient

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArloPlan(BuildPlan[ArloManifest]):
    """What the build of a text classifier would publish; see `BuildPlan`.

    `missing` lists what the models of a partitioned model's runtimes lack, which is restored from the newest version.

    Attributes:
        source: Folder of the source model.
        samples: File of the spec's own texts, if it names one.
    """

    source: Path
    samples: Path | None


def plan_arlo(spec: ArloSpec, repository: Path, base: Path, *, accepted: Collection[Task] = SINGLE_LABEL) -> ArloPlan:
    """Compare what is published with the current spec, source, code, libraries and device.

    Args:
        spec: Spec of the classifier.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.
        accepted: Tasks of the source model that can be served.

    Raises:
        InvalidArgument: The source model or the samples do not exist, or the model is for another task.
        Unsupported: The engine's library is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, accepted, spec.kind)
    samples = samples_file(spec.samples, base)
    parts = arlo_ingredients(spec, source, samples)
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_arlo_manifest, parts)
    missing: list[str] = []
    if published is not None and not reasons:
        missing = missing_runtimes(entry, published, entry.versions()[-1])
    return ArloPlan(
        entry=entry,
        ingredients=parts,
        published=published,
        reasons=reasons,
        missing=tuple(missing),
        source=source,
        samples=samples,
    )


def arlo_ingredients(spec: ArloSpec, source: Path, samples: Path | None) -> dict[str, str]:
    """Everything that a version of a text classifier is made of.

    Args:
        spec: Spec of the classifier.
        source: Folder of the source model.
        samples: File of the spec's own texts, if it names one.
    """
    engine, workers = engine_entry(spec.engine), default_workers(spec)
    engine_libraries = (engine.distribution, *engine.build_libraries, *engine.int8_libraries)
    return ingredients(
        spec,
        source=source,
        code=code_hash("tidal_builders.arlo.build", engine.module),
        device_kind=choose_device(spec.engine, spec.device),
        libraries=tuple(dict.fromkeys((*_LIBRARIES, *engine_libraries))),
        more={
            "workers": f"{workers.contexts} of {workers.threads} threads",
            **samples_ingredient(samples),
        },
    )
