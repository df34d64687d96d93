"""`python -m benchmarks.pets.capacity_child`: fill this process with models or tasks and print its memory as JSON.

Memory is the proportional set size of the process: shared pages count in part, pages of a mapped file if they were
read.
"""

from __future__ import annotations

import ctypes
import gc
import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from tidal.pets.base import load_base_layers
from tidal.pets.engine.contract import answer
from tidal.pets.openvino_engine.engine import open_openvino_engine
from tidal_builders.pets.typical import TYPICAL_KINDS, typical_task

# The paper's protocol: the process must survive a batch of this shape.
_ROWS, _TOKENS = 32, 128
_VARIANTS = 2
# Full models of all kinds have the same size. OpenVINO keeps the original weights beside the packed ones; a model that
# changes no matrix shares the former with all others, which is the least memory that a full model needs.
_LEAST = ("bitfit",)


def memory() -> int:
    """Return the bytes that this process uses, after freed memory was returned to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_full_info().pss)


def main(
    version: Annotated[Path, typer.Option(help="Folder with a base's layers and engine.")],
    engine: Annotated[Path, typer.Option(help="Folder with the engine's graph.")],
    full: Annotated[Path | None, typer.Option(help="Folder with full models' graphs: fill with full models.")] = None,
    budget: Annotated[int, typer.Option(help="Bytes to fill; 0: measure the bytes of one only.")] = 0,
    count: Annotated[int, typer.Option(help="Number of copies to measure the bytes of one by.")] = 4,
) -> None:
    """Measure the memory of the base, and of each task of every kind or each full model; fill a budget with them."""
    base = load_base_layers(version)
    terms = {kind: [typical_task(kind, base, seed=seed) for seed in range(_VARIANTS)] for kind in TYPICAL_KINDS}
    ids = np.full((_ROWS, _TOKENS), 1000, np.int32)
    lengths = np.full(_ROWS, _TOKENS, np.int32)
    start = memory()
    each: dict[str, float] = {}
    kept = list[Any]()
    begin = time.monotonic()
    if full is None:
        opened = open_openvino_engine(engine, threads=2)
        opened.pooled([None], ids[:1, :8], np.array([8], np.int32))
        shared = memory() - start

        def add(kind: str, number: int) -> None:
            kept.append(opened.add(terms[kind][number % _VARIANTS]))
    else:
        from benchmarks.pets.full_models import FullModels

        models = FullModels(full, base)
        rows = {name: np.ones((1, 8), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}

        def add(kind: str, number: int) -> None:
            kept.append(models.compile(terms[kind][number % _VARIANTS], 2, own_tables=True))
            kept[-1](rows)

        # The graphs that models are made from are shared by all of them: load them before measuring.
        add(_LEAST[0], 0)
        kept.clear()
        shared = 0
    base_line = memory()
    kinds = TYPICAL_KINDS if full is None else _LEAST
    for kind in kinds:
        before = memory()
        for number in range(count):
            add(kind, number)
        each[kind] = (memory() - before) / count
    number = len(kept)
    while budget and memory() - base_line + shared < budget:
        # Reading the memory takes longer than adding a task: add as many as fit with certainty.
        left = budget - (memory() - base_line + shared)
        for _ in range(max(1, int(left / max(each.values()) / 2))):
            add(kinds[number % len(kinds)], number // len(kinds))
            number += 1
    weights = memory() - base_line + shared
    if full is None:
        tasks = [kept[row % len(kept)] for row in range(_ROWS)]
        survived = len(answer(opened, tasks, ids, lengths)) == _ROWS
    else:
        batch = {name: np.ones((_ROWS, _TOKENS), np.int64) for name in rows}
        survived = kept[-1](batch)[0].shape[0] == _ROWS
    found = {
        "shared": shared,
        "each": each,
        "count": number - 1 if budget else number,  # the last one exceeded the budget
        "weights": weights,
        "with_batch": memory() - base_line + shared,
        "survived": bool(survived),
        "seconds": time.monotonic() - begin,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
