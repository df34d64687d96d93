"""A decoder's task of a folder that peft saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.manifest import FloverManifest
from tidal.flover.tasks.folder import DecoderBase
from tidal.flover.tasks.layers import places
from tidal.tasks.low_rank import LowRankDelta
from tidal_builders.foreign.peft import CONFIG_FILE, read_peft_lora, require_task
from tidal_builders.foreign.trained_on import ServedBase, TrainedOn, source_on_this_machine, trained_on


class ImportedLora(NamedTuple):
    """Differences by the path of the linear layer, and the base that they were trained on, as peft names it."""

    deltas: dict[str, LowRankDelta]
    named: str


def import_lora(folder: Path, base: DecoderBase) -> ImportedLora:
    """The differences of a peft folder with plain LoRA.

    Raises:
        InvalidArgument: it is no folder of peft, a file is wrong, or the shapes are not the decoder's.
        Unsupported: it changes what a decoder's task cannot, or answers another task; says what.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InvalidArgument(
            f"{folder} is nothing that a decoder's task can be made of: accepted are folders with task.json (a stored "
            f"task) or {CONFIG_FILE} (LoRA, as peft saves it)"
        )
    layers = {path: (place.outputs, place.inputs) for path, place in places(base.form).items()}
    found = read_peft_lora(folder, layers, turned=base.form.family == "gpt2")
    require_task(found, folder, "text_generation")
    whole = [*found.others, *(f"{path}.lora_B.bias" for path in found.biases)]
    if whole:
        raise Unsupported(
            f"tensor '{whole[0]}' is trained beside the low-rank differences; a decoder's task has these alone"
        )
    return ImportedLora(found.deltas, found.base)


def confirm_base(folder: Path, named: str, manifest: FloverManifest, given: Path | None, *, force: bool) -> TrainedOn:
    """Compare the base that an adapter names with the decoder's own; arguments and errors as `trained_on`."""
    served = ServedBase(manifest.source.model, source_on_this_machine(manifest), partial(_same, manifest.base))
    return trained_on(folder, named, served, given, force=force)


def _same(digest: str, folder: Path) -> bool:
    from tidal_builders.flover.source import decoder_digest, load_causal_lm  # transformers: slow to load

    return decoder_digest(load_causal_lm(folder)) == digest
