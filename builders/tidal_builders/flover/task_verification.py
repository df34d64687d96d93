"""Compares the generations of a decoder's stored task with those of its source LoRA in peft."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import PeftModel

from tidal import device
from tidal.errors import InvalidArgument, TidalError
from tidal.flover.manifest import WEIGHTS_FILE, FloverManifest, GenerationVerification
from tidal.flover.memory.available import available_bytes
from tidal.flover.models.weights_file import load_weights
from tidal.flover.runner import FloverRunner
from tidal.flover.tasks.adapter import lora_adapter
from tidal.flover.tasks.folder import FloverProvenance, FloverTask
from tidal.flover.tasks.layers import layer_slices
from tidal_builders.flover.source import DecoderSource, load_decoder
from tidal_builders.flover.spec import default_tolerance, least_match
from tidal_builders.flover.verify import misses, read_references, verify, write_references
from tidal_builders.quiet import quiet_transformers
from tidal_builders.texts import make_texts
from tidal_builders.tolerances import DEFAULT_TOLERANCE as STORED_TOLERANCE

_SLOTS = 4
_MAX_LENGTH = 128  # tokens of a compared prompt and its generation


def verify_task(
    task: FloverTask, adapter: Path, base: Path | None, version: Path, manifest: FloverManifest, *,
    half: bool, force: bool,
) -> FloverProvenance:  # fmt: skip
    """Generate greedily with the task, on the engine that serves it, and compare with peft.

    Args:
        task: Task as stored and read back.
        adapter: Folder of the LoRA as peft saved it.
        base: Folder of the decoder that it was trained on; None: not on this machine.
        version: Folder of the decoder's published version.
        manifest: Manifest of that version.
        half: Whether the values were stored as float16.
        force: Whether to accept a task that differs, or cannot be compared.

    Returns:
        The task's provenance with the result.

    Raises:
        InvalidArgument: The task generates differently, or cannot be compared; states the figures.
    """
    provenance = task.record.provenance
    try:
        verification = _verify(task, adapter, base, version, manifest, half=half)
    except TidalError as error:
        if not force:
            raise InvalidArgument(f"{error}; nothing was added (to add it anyway, use --force)") from None
        return provenance.model_copy(update={"notes": (*provenance.notes, f"added by --force: {error}")})
    return provenance.model_copy(update={"held": verification})


def _verify(
    task: FloverTask, adapter: Path, base: Path | None, version: Path, manifest: FloverManifest, *, half: bool
) -> GenerationVerification:
    if base is None:
        raise InvalidArgument(
            "the task cannot be compared with peft: the files of its base model are not on this machine; pass their "
            "folder by --base-model FOLDER"
        )
    manifest.check(version, device.here(manifest.device.kind))
    longest = min(_MAX_LENGTH, manifest.max_length, manifest.form.trained_positions)
    kept = manifest.precision, manifest.kv_cache_dtype
    tolerance = default_tolerance(*kept) + half * STORED_TOLERANCE["fp16"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "references.npz"
        write_references(_peft(adapter, base), make_texts(200, seed=3), longest, path)
        references = read_references(path)
    torch_device = torch.device("cuda" if manifest.device.kind == "gpu" else "cpu")
    torch.set_num_threads(manifest.threads)
    runner = FloverRunner(
        manifest.form,
        load_weights(version / WEIGHTS_FILE, manifest.form, torch_device),
        slots=min(_SLOTS, manifest.max_concurrency),
        max_length=longest,
        available=available_bytes(torch_device),
        tiling=manifest.kernels,
        kv_cache_dtype=manifest.kv_cache_dtype,
    )
    verification = verify(runner, references, tolerance, task=lora_adapter(task.deltas, layer_slices(manifest.form)))
    if reasons := misses(verification, least_match(*kept)):
        raise InvalidArgument(f"the stored task does not generate as peft does: {'; '.join(reasons)}")
    return verification


def _peft(adapter: Path, base: Path) -> DecoderSource:
    """Merge the LoRA into its base by peft."""
    source = load_decoder(base)
    with quiet_transformers():
        merged: Any = PeftModel.from_pretrained(source.model, str(adapter)).merge_and_unload()
    return DecoderSource(merged.eval(), source.tokenizer, source.form)
