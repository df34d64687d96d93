"""Plans the build of a decoder, without loading the source model."""

from __future__ import annotations

import os
from pathlib import Path

from tidal.engines import choose_device
from tidal.errors import Unsupported
from tidal.flover.manifest import INTEGERS, FloverManifest, load_flover_manifest
from tidal.flover.native.library import BUILD_COMMAND, library, library_path
from tidal.repository.entries import ModelEntry
from tidal_builders.fingerprint import code_hash, source_folder
from tidal_builders.flover.spec import FloverSpec
from tidal_builders.foreign.recognise import DECODERS, require
from tidal_builders.planning import TextModelPlan, compare, ingredients, text_file, text_ingredient

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "safetensors")


# What the build of a decoder would publish.
FloverPlan = TextModelPlan[FloverManifest]


def plan_flover(spec: FloverSpec, repository: Path, base: Path) -> FloverPlan:
    """Compare what is published with the current spec, source, code, libraries and device.

    Args:
        spec: Spec of the decoder.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: The source model or the samples do not exist.
        Unsupported: torch is not installed, this machine has no GPU, or int8 and int4 cannot run on the device.
    """
    source = source_folder(spec.model, spec.revision, base)
    require(source, DECODERS, spec.kind)
    samples = text_file("samples", spec.samples, base)
    threads = spec.threads or len(os.sched_getaffinity(0))
    device_kind = choose_device(spec.engine, spec.device)
    compiled = device_kind == "cpu" and library() is not None
    integers = {"precision": spec.precision} if spec.precision in INTEGERS else {}
    if spec.kv_cache_dtype == "int8":
        integers["kv_cache_dtype"] = "int8"
    if integers and not compiled:
        field, value = next(iter(integers.items()))
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
        samples=samples,
        threads=threads,
    )
