"""The tasks of a served decoder, loaded on use within a memory budget."""

from __future__ import annotations

from pathlib import Path

from tidal.flover.tasks.adapter import LoraAdapter, lora_adapter
from tidal.flover.tasks.folder import DecoderBase, FloverTask, load_task
from tidal.flover.tasks.layers import layer_slices
from tidal.metrics import Metrics
from tidal.tasks.library import TaskLibrary

FloverLibrary = TaskLibrary[FloverTask, LoraAdapter]


def open_library(folder: Path, base: DecoderBase, budget: int, metrics: Metrics) -> FloverLibrary:
    """Open a folder of tasks.

    Args:
        folder: The model's folder of tasks; it need not exist.
        base: Decoder that the tasks must be made for.
        budget: Largest size of tasks in memory, in bytes.
        metrics: Metrics of the model.
    """
    slices = layer_slices(base.form)
    return FloverLibrary(
        folder,
        lambda name: load_task(folder, name, base),
        lambda task: lora_adapter(task.deltas, slices),
        lambda _adapter: None,  # nothing to unload: passes reference the tasks they use
        budget,
        metrics,
    )
