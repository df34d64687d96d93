"""Device memory by number of tasks: PetS's shared encoder against a full model per task."""

from __future__ import annotations

import torch

from benchmarks.gpu.encoder import make_encoder, size_of
from benchmarks.gpu.recording import Record, Setting
from benchmarks.gpu.shared_encoder import SharedEncoder

TASKS = 32


def measure(setting: Setting, record: Record) -> None:
    """Record MiB by tasks; claims `gpu_task_memory_vs_models[32]`."""
    size, device = size_of(setting), setting.torch_device
    before = _allocated(device)
    model = make_encoder(size).to(device)
    of_model = (_allocated(device) - before) or sum(each.numel() * each.itemsize for each in model.parameters())
    del model
    shared = SharedEncoder(setting)
    before = _allocated(device)
    engine = shared.open(setting.device)
    of_encoder = (_allocated(device) - before) or of_model
    found: dict[str, dict[str, float]] = {}
    loaded = 0
    packed = 0
    for tasks in (1, 4, 8, 16, TASKS):
        packed += sum(task.bytes for task in shared.add_tasks(engine, tasks - loaded))
        loaded = tasks
        total = (_allocated(device) - before) if device.type == "cuda" else of_encoder + packed
        found[str(tasks)] = {"PetS": total / 2**20, "a model per task": of_model * tasks / 2**20}
        record.put("MiB", found)
        rows = [[at, *(f"{value:.0f}" for value in cells.values())] for at, cells in found.items()]
        record.table("BERT-base fp32, MiB of device memory", ["tasks", "PetS", "a model per task"], rows)
    last = found[str(TASKS)]
    record.claim(f"gpu_task_memory_vs_models[{TASKS}]", last["PetS"] / last["a model per task"])


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
