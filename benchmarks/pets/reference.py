"""Reference answers: full models of the tasks in unmodified `transformers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.pets.prepare import LONGEST
from demo.train import minilm_folder
from tidal.pets.tasks.folder import load_task
from tidal.pets.terms import BaseLayers, FloatArray
from tidal_builders.pets.training.examples import Examples
from tidal_builders.pets.training.merged import merged_classifier

# Folder of a task, and one or two texts.
Row = tuple[Path, tuple[str, ...]]


def expected(rows: Sequence[Row], base: BaseLayers, *, batch: int = 1) -> list[FloatArray]:
    """Return the logits of each row, [classes], from the merged full model of its task.

    Args:
        rows: Rows to run.
        base: Layers of the base.
        batch: Number of rows of a task and of similar lengths per batch.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    source = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(source)
    of_task: dict[Path, list[int]] = defaultdict(list)
    for number, (folder, _) in enumerate(rows):
        of_task[folder].append(number)
    found: dict[int, FloatArray] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch's threads spin while they wait, which is slow beside other load
    for folder, numbers in of_task.items():
        model = merged_classifier(source, load_task(folder.parent, folder.name, base).terms)
        examples = Examples(tokenizer, [rows[number][1] for number in numbers], LONGEST)
        for places in examples.sorted(batch):
            with torch.inference_mode():
                logits = model(**examples.padded(places)).logits.numpy()
            found |= {numbers[place]: row for place, row in zip(places, logits, strict=True)}
    torch.set_num_threads(threads)
    return [found[number] for number in range(len(rows))]


def labels_of(folders: Sequence[Path], base: BaseLayers) -> Mapping[Path, tuple[str, ...]]:
    """Return the labels of each task."""
    return {folder: load_task(folder.parent, folder.name, base).terms.head.labels for folder in folders}


def agreement(found: Sequence[FloatArray], wanted: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the share of rows with the same label, and the largest absolute difference of a logit."""
    same = np.mean([int(a.argmax()) == int(b.argmax()) for a, b in zip(found, wanted, strict=True)])
    return float(same), max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))
