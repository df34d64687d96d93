"""Opens the runner of a published decoder."""

from __future__ import annotations

from pathlib import Path

import torch

from tidal.flover.manifest import WEIGHTS_FILE, FloverManifest
from tidal.flover.memory.available import available_bytes
from tidal.flover.models.weights_file import load_weights
from tidal.flover.runner import FloverRunner

_MIB = 1 << 20


def open_runner(manifest: FloverManifest, version_dir: Path, kv_cache_mb: float | None = None) -> FloverRunner:
    """Load a version's weights, allocate the addresses of its slots, and warm up.

    torch has one number of threads per process, which is set to the manifest's.

    Args:
        manifest: Manifest of the version.
        version_dir: Folder of the version.
        kv_cache_mb: Most MiB of keys and values; None: as the manifest says.

    Raises:
        InvalidArgument: One full slot, on a GPU all slots, does not fit into memory; states the sizes.
        Unsupported: torch is not installed; names the extra that installs it.
    """
    budget = manifest.kv_cache_mb if kv_cache_mb is None else kv_cache_mb
    device = torch.device("cuda" if manifest.device.kind == "gpu" else "cpu")
    torch.set_num_threads(manifest.threads)
    runner = FloverRunner(
        manifest.form,
        load_weights(version_dir / WEIGHTS_FILE, manifest.form, device),
        slots=manifest.max_concurrency,
        max_length=manifest.max_length,
        available=available_bytes(device),
        tiling=manifest.kernels,
        kv_cache_dtype=manifest.kv_cache_dtype,
        kv_cache_bytes=None if budget is None else int(budget * _MIB),
    )
    runner.warm_up()
    return runner
