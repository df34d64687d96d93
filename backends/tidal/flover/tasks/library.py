"""The tasks of a decoder, those in use in memory, within a budget."""

from __future__ import annotations

from pathlib import Path

from tidal.flover.tasks.adapter import Adapter, adapter_of
from tidal.flover.tasks.folder import DecoderBase, FloverTask, load_task
from tidal.flover.tasks.layers import places
from tidal.metrics import Metrics
from tidal.tasks.library import TaskLibrary

FloverLibrary = TaskLibrary[FloverTask, Adapter]


def open_library(folder: Path, base: DecoderBase, budget: int, metrics: Metrics) -> FloverLibrary:
    """The tasks in a folder.

    Args:
        folder: the model's folder of tasks; it need not exist.
        base: what the tasks have to be made for.
        budget: bytes that their values may take.
        metrics: the model's.
    """
    known = places(base.form)
    return FloverLibrary(
        folder,
        lambda name: load_task(folder, name, base),
        lambda task: adapter_of(task.deltas, known),
        lambda _adapter: None,  # passes hold those that they use: in memory is all that a task has to be
        budget,
        metrics,
    )
