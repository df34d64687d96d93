"""A decoder's task of a folder that peft saved."""

from __future__ import annotations

from pathlib import Path

from tidal.errors import InvalidArgument, Unsupported
from tidal.flover.tasks.folder import DecoderBase, FloverProvenance
from tidal.flover.tasks.layers import places
from tidal.tasks.low_rank import LowRankDelta
from tidal_builders.foreign.peft import CONFIG_FILE, read_peft_lora


def import_lora(folder: Path, base: DecoderBase) -> tuple[dict[str, LowRankDelta], FloverProvenance]:
    """The differences of a peft folder with plain LoRA, by path, and where they came from.

    Raises:
        InvalidArgument: it is no folder of peft, a file is wrong, or the shapes are not the decoder's.
        Unsupported: it changes what a decoder's task cannot; says what.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InvalidArgument(
            f"{folder} is nothing that a decoder's task can be made of: accepted are folders with task.json (a stored "
            f"task) or {CONFIG_FILE} (LoRA, as peft saves it)"
        )
    layers = {path: (place.outputs, place.inputs) for path, place in places(base.form).items()}
    found = read_peft_lora(folder, layers, turned=base.form.family == "gpt2")
    whole = [*found.others, *(f"{path}.lora_B.bias" for path in found.biases)]
    if whole:
        raise Unsupported(
            f"tensor '{whole[0]}' is trained beside the low-rank differences; a decoder's task has these alone"
        )
    return found.deltas, FloverProvenance(source=str(folder), notes=(found.note,))
