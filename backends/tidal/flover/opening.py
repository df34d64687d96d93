"""Opens the runners of a published decoder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from tidal.errors import InvalidArgument
from tidal.flover.form import DecoderForm
from tidal.flover.manifest import DRAFT_FILE, WEIGHTS_FILE, DraftManifest, FloverManifest
from tidal.flover.memory.available import available_bytes
from tidal.flover.memory.buffers import cache_dtype, slot_layout
from tidal.flover.models.weights import DecoderWeights
from tidal.flover.models.weights_file import load_weights
from tidal.flover.native.library import usable
from tidal.flover.runner import FloverRunner

_MIB = 1 << 20


class OpenedRunners(NamedTuple):
    """Runners of a version.

    Attributes:
        runner: Runner of the decoder.
        draft: Runner of its draft model; None without one.
    """

    runner: FloverRunner
    draft: FloverRunner | None


def open_runner(manifest: FloverManifest, version_dir: Path, kv_cache_mb: float | None = None) -> FloverRunner:
    """Open the runner of a version without its draft model, see `open_runners`."""
    return open_runners(manifest, version_dir, kv_cache_mb, drafts=False).runner


def open_runners(
    manifest: FloverManifest, version_dir: Path, kv_cache_mb: float | None = None, *, drafts: bool = True
) -> OpenedRunners:
    """Load a version's weights, allocate the addresses of its slots, and warm up.

    torch has one number of threads per process, which is set to the manifest's.

    Args:
        manifest: Manifest of the version.
        version_dir: Folder of the version.
        kv_cache_mb: Most MiB of keys and values, those of the draft model included; None: as the manifest says.
        drafts: Whether to open the draft model, where drafts can be checked.

    Raises:
        InvalidArgument: One full slot, on a GPU all slots, does not fit into memory; states the sizes.
        Unsupported: torch is not installed; names the extra that installs it.
    """
    limit_mb = manifest.kv_cache_mb if kv_cache_mb is None else kv_cache_mb
    limit = None if limit_mb is None else int(limit_mb * _MIB)
    device = torch.device("cuda" if manifest.device.kind == "gpu" else "cpu")
    torch.set_num_threads(manifest.threads)
    weights = load_weights(version_dir / WEIGHTS_FILE, manifest.form, device)
    draft, drafter = manifest.draft, None
    # Drafts are checked in passes that only the native library and a GPU have.
    small = load_weights(version_dir / DRAFT_FILE, draft.form, device) if draft and drafts and _checks(device) else None
    available = available_bytes(device)
    if draft is not None and small is not None:
        own = _draft_limit(manifest, draft, weights, small, limit, available)
        drafter = _open(manifest, draft.form, small, draft.max_length, available, own)
        available -= drafter.planned_bytes
        limit = None if limit is None else limit - drafter.budget
    runner = _open(manifest, manifest.form, weights, manifest.max_length, available, limit)
    for each in (runner, drafter):
        if each is not None:
            each.warm_up()
    return OpenedRunners(runner, drafter)


def _checks(device: torch.device) -> bool:
    return device.type == "cuda" or usable(device) is not None


def _open(
    manifest: FloverManifest, form: DecoderForm, weights: DecoderWeights, max_length: int, available: int,
    limit: int | None,
) -> FloverRunner:  # fmt: skip
    return FloverRunner(
        form, weights, slots=manifest.max_concurrency, max_length=max_length, available=available,
        tiling=manifest.kernels, kv_cache_dtype=manifest.kv_cache_dtype, kv_cache_bytes=limit,
    )  # fmt: skip


def _draft_limit(
    manifest: FloverManifest, draft: DraftManifest, weights: DecoderWeights, small: DecoderWeights,
    limit: int | None, available: int,
) -> int:  # fmt: skip
    """Most bytes of the draft model's keys and values: their share of the bytes of a full slot of both models.

    Raises:
        InvalidArgument: The limit is too small for one full slot of both; states the sizes.
    """
    own = _slot_bytes(manifest, draft.form, small, draft.max_length)
    other = _slot_bytes(manifest, manifest.form, weights, manifest.max_length)
    if limit is not None and limit < own + other:
        raise InvalidArgument(
            f"kv_cache_mb is {limit / _MIB:g}; a sequence of {manifest.max_length} tokens, the max_length, takes "
            f"{other / _MIB:.2f} MiB and {own / _MIB:.2f} MiB in the draft model: raise kv_cache_mb to at least their "
            "sum, lower max_length, or set speculation: false"
        )
    return max(own, (available if limit is None else limit) * own // (own + other))


def _slot_bytes(manifest: FloverManifest, form: DecoderForm, weights: DecoderWeights, max_length: int) -> int:
    """Bytes of a full slot."""
    device = weights.tokens.device
    dtype = cache_dtype(weights.tokens.dtype, device, manifest.kv_cache_dtype)
    return slot_layout(form, max_length, dtype, device).pages.bytes(max_length)
