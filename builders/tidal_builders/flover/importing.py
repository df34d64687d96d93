"""Imports LoRA folders saved by peft as tasks of a decoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.manifest import FloverManifest
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.layers import layer_slices
from tidal.tasks.low_rank import LowRankDelta
from tidal_builders.foreign.peft import CONFIG_FILE, read_peft_lora, require_task
from tidal_builders.foreign.trained_on import ServedBase, TrainedOn, source_on_this_machine, trained_on


class ImportedLora(NamedTuple):
    """A LoRA as peft saved it.

    Attributes:
        deltas: Low-rank updates by the path of the linear layer.
        named: Base model named by peft.
    """

    deltas: dict[str, LowRankDelta]
    named: str


def import_lora(folder: Path, base: DecoderBase) -> ImportedLora:
    """Read a peft folder with plain LoRA.

    Args:
        folder: Folder that peft saved.
        base: Decoder that the LoRA must fit.

    Raises:
        InvalidArgument: The folder was not saved by peft, a file is invalid, or a shape differs from the decoder's.
        Unsupported: It changes parameters that a decoder's task cannot, or is for another kind of task; names them.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InvalidArgument(
            f"{folder} is not a task of a decoder; accepted are folders with task.json (a stored task) or "
            f"{CONFIG_FILE} (a LoRA saved by peft)"
        )
    layers = {path: (part.outputs, part.inputs) for path, part in layer_slices(base.form).items()}
    found = read_peft_lora(folder, layers, transposed=base.form.family == "gpt2")
    require_task(found, folder, "text_generation")
    unsupported = [*found.others, *(f"{path}.lora_B.bias" for path in found.biases)]
    if unsupported:
        raise Unsupported(
            f"tensor '{unsupported[0]}' is trained in addition to LoRA factors; accepted are LoRA factors only"
        )
    return ImportedLora(found.deltas, found.base)


def confirm_base(folder: Path, named: str, manifest: FloverManifest, given: Path | None, *, force: bool) -> TrainedOn:
    """Check that a LoRA was trained on the served decoder; arguments and errors as `trained_on`."""
    served = ServedBase(manifest.source.model, source_on_this_machine(manifest), partial(_same, manifest.base))
    return trained_on(folder, named, served, given, force=force)


def _same(digest: str, folder: Path) -> bool:
    from tidal_builders.flover.source import decoder_digest, load_causal_lm  # transformers: slow to load

    return decoder_digest(load_causal_lm(folder)) == digest
