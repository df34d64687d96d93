"""Whether a decoder's stored task generates as the LoRA that it was made of does in peft."""

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
from tidal.flover.models.weights import load_weights
from tidal.flover.runner import FloverRunner
from tidal.flover.tasks.adapter import adapter_of
from tidal.flover.tasks.folder import FloverProvenance, FloverTask
from tidal.flover.tasks.layers import places
from tidal_builders.flover.source import DecoderSource, load_decoder
from tidal_builders.flover.spec import DEFAULT_TOLERANCE
from tidal_builders.flover.verify import misses, read_references, verify, write_references
from tidal_builders.quiet import quiet_transformers
from tidal_builders.texts import make_texts
from tidal_builders.tolerances import DEFAULT_TOLERANCE as STORED_TOLERANCE

# Of the prompts and generations that are compared.
_SLOTS, _LONGEST = 4, 128


def hold(
    task: FloverTask, adapter: Path, base: Path | None, version: Path, manifest: FloverManifest, *,
    half: bool, force: bool,
) -> FloverProvenance:  # fmt: skip
    """Generate greedily with the task, on the engine that serves it, and compare with peft.

    Args:
        task: As it was read back from where it was stored.
        adapter: Folder that peft saved.
        base: Files of the decoder that it was trained on.
        version: Folder of the decoder's published version.
        manifest: The version's.
        half: Whether the values were stored as float16.
        force: Whether to accept a task that differs, or cannot be compared.

    Returns:
        Where the task came from, with what was found.

    Raises:
        InvalidArgument: The task generates otherwise, or cannot be compared; says the figures.
    """
    made = task.record.provenance
    try:
        held = _hold(task, adapter, base, version, manifest, half=half)
    except TidalError as error:
        if not force:
            raise InvalidArgument(f"{error}; nothing was added (--force adds it all the same)") from None
        return made.model_copy(update={"notes": (*made.notes, f"added by --force: {error}")})
    return made.model_copy(update={"held": held})


def _hold(
    task: FloverTask, adapter: Path, base: Path | None, version: Path, manifest: FloverManifest, *, half: bool
) -> GenerationVerification:
    if base is None:
        raise InvalidArgument(
            "the task cannot be compared with peft: the base's own files are not on this machine; name their folder by "
            "--base-model FOLDER"
        )
    manifest.check(version, device.here(manifest.device.kind))
    longest = min(_LONGEST, manifest.max_length)
    tolerance = DEFAULT_TOLERANCE[manifest.precision] + half * STORED_TOLERANCE["fp16"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "references.npz"
        write_references(_peft(adapter, base), make_texts(200, seed=3), longest, path)
        references = read_references(path)
    place = torch.device("cuda" if manifest.device.kind == "gpu" else "cpu")
    torch.set_num_threads(manifest.threads)
    runner = FloverRunner(
        manifest.form,
        load_weights(version / WEIGHTS_FILE, manifest.form, place),
        slots=min(_SLOTS, manifest.max_concurrency),
        max_length=longest,
        available=available_bytes(place),
    )
    found = verify(runner, references, tolerance, task=adapter_of(task.deltas, places(manifest.form)))
    if said := misses(found, manifest.precision):
        raise InvalidArgument(f"the stored task does not generate as peft does: {'; '.join(said)}")
    return found


def _peft(adapter: Path, base: Path) -> DecoderSource:
    """The LoRA merged into its base, by peft."""
    source = load_decoder(base)
    with quiet_transformers():
        merged: Any = PeftModel.from_pretrained(source.model, str(adapter)).merge_and_unload()
    return DecoderSource(merged.eval(), source.tokenizer, source.form)
