"""Plans the build of a decoder, without loading the source model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tidal.engines import choose_device
from tidal.errors import Unsupported
from tidal.flover.architectures import MIXTURES
from tidal.flover.manifest import INTEGERS, FloverManifest, load_flover_manifest
from tidal.flover.native.library import BUILD_COMMAND, library, library_path
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import code_hash, hash_source, source_folder
from tidal_builders.flover.spec import FloverSpec
from tidal_builders.foreign.files import read_json
from tidal_builders.foreign.recognise import DECODERS, require
from tidal_builders.planning import TextModelPlan, compare, ingredients, text_file, text_ingredient

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "safetensors")


@dataclass(frozen=True, kw_only=True)
class FloverPlan(TextModelPlan[FloverManifest]):
    """What the build of a decoder would publish.

    Attributes:
        draft: Folder of the draft model; None without one.
    """

    draft: Path | None


def plan_flover(spec: FloverSpec, repository: Path, base: Path) -> FloverPlan:
    """Compare what is published with the current spec, source, code, libraries and device.

    Args:
        spec: Spec of the decoder.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: The source model, the draft model or the samples do not exist.
        Unsupported: torch is not installed, this machine has no GPU, or int8, int4 or a mixture of experts cannot run
            on the device.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, DECODERS, spec.kind)
    samples = text_file("samples", spec.samples, base)
    threads = spec.threads or len(os.sched_getaffinity(0))
    device_kind = choose_device(spec.engine, spec.device)
    if device_kind == "gpu" and (family := read_json(source / "config.json").get("model_type")) in MIXTURES:
        raise Unsupported(
            f"field 'device': a mixture of experts ({family}) has no decode steps for a gpu: set device: cpu"
        )
    compiled = device_kind == "cpu" and library() is not None
    native: dict[str, str] = {"precision": spec.precision} if spec.precision in INTEGERS else {}
    if spec.kv_cache_dtype == "int8":
        native["kv_cache_dtype"] = "int8"
    draft = None
    if spec.draft is not None:
        draft = source_folder(spec.draft.model, spec.draft.revision, base, "field 'draft.model'")
        require(draft, DECODERS, spec.kind, "draft.model")
        if spec.draft.precision in INTEGERS:
            native["draft.precision"] = spec.draft.precision
        elif device_kind == "cpu":
            native["draft"] = "a draft model"
    if native and not compiled:
        field, value = next(iter(native.items()))
        raise Unsupported(
            f"field '{field}': {value} requires the native kernels of a CPU, but "
            + (
                "the device is a gpu: set device: cpu"
                if device_kind == "gpu"
                else f"they are not built: {BUILD_COMMAND}"
            )
        )
    parts = ingredients(
        spec,
        source=source,
        code=code_hash("tidal_builders.flover.build"),
        device_kind=device_kind,
        libraries=_LIBRARIES,
        more={
            "threads": str(threads),
            "kernels": library_path().stem if compiled else "none",
            "draft files": "none" if draft is None else hash_source(draft),
            **text_ingredient("samples file", samples),
        },
    )
    entry = ModelEntry(repository / spec.name)
    published, reasons = compare(entry, load_flover_manifest, parts)
    return FloverPlan(
        entry=entry,
        ingredients=parts,
        published=published,
        reasons=reasons,
        source=source,
        draft=draft,
        samples=samples,
        threads=threads,
    )
